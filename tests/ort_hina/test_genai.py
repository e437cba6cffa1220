"""Folders of onnxruntime-genai: what becomes of their configuration, and (slow) the tokens that genai generates."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path

import onnx
import pytest
from support.looped_graph import looped_model

from ort_hina import OrtHinaError, cli, genai
from ort_hina.genai import BACKUP_NAME, CONFIG_NAME, next_step, use_fused
from ort_hina.library import LIBRARY_NAME
from ort_hina.models.environment import exporters_python
from ort_hina.models.export_folder import Export, export_all

# As the builder writes it: four spaces, no last line end, session options first.
CONFIG = """{
    "model": {
        "bos_token_id": 1,
        "decoder": {
            "session_options": {
                "log_id": "onnxruntime-genai",
                "provider_options": []
            },
            "filename": "model.onnx",
            "inputs": {
                "input_ids": "input_ids",
                "past_key_names": "past_key_values.%d.key"
            }
        },
        "type": "gptoss"
    },
    "search": {
        "diversity_penalty": 0.0,
        "repetition_penalty": 1e-05,
        "top_k": 50
    }
}"""


@pytest.fixture
def library(tmp_path, monkeypatch) -> Path:
    """Stands for the installed library, which these tests do not load."""
    file = tmp_path / "installed" / LIBRARY_NAME
    file.parent.mkdir()
    file.write_bytes(b"the library")
    monkeypatch.setattr(genai, "library_path", lambda: str(file))
    return file


@pytest.fixture
def folder(tmp_path, library) -> Path:
    return make_folder(tmp_path / "Mödel folder")


def make_folder(folder: Path, config: str = CONFIG, *models: str) -> Path:
    folder.mkdir()
    (folder / CONFIG_NAME).write_bytes(config.encode())
    for name in models or ("model.onnx", "model_hina.onnx"):
        (folder / name).write_bytes(b"a model")
    return folder


def config_of(folder: Path) -> str:
    return (folder / CONFIG_NAME).read_bytes().decode()


def contents(folder: Path) -> dict[str, bytes]:
    return {file.name: file.read_bytes() for file in folder.iterdir()}


def edited(folder: Path, **options: object) -> None:
    """Sets session options, as a user would."""
    content = json.loads(config_of(folder))
    content["model"]["decoder"]["session_options"] |= options
    (folder / CONFIG_NAME).write_text(json.dumps(content, indent=4))


def options_of(folder: Path) -> dict[str, object]:
    return json.loads(config_of(folder))["model"]["decoder"]["session_options"]


def test_nothing_but_the_model_and_the_library_changes(folder, library):
    report = use_fused(folder)
    expected = CONFIG.replace('"filename": "model.onnx"', '"filename": "model_hina.onnx"').replace(
        '"provider_options": []', f'"provider_options": [],\n                "custom_ops_library": "{LIBRARY_NAME}"'
    )
    assert contents(folder) == {
        CONFIG_NAME: expected.encode(),
        BACKUP_NAME: CONFIG.encode(),
        LIBRARY_NAME: library.read_bytes(),
        "model.onnx": b"a model",
        "model_hina.onnx": b"a model",
    }
    assert (report.config, report.model, report.library) == (str(folder / CONFIG_NAME), "model_hina.onnx", LIBRARY_NAME)
    assert report.changed


def test_a_second_call_changes_nothing(folder):
    use_fused(folder)
    before = contents(folder)
    stamp = (folder / CONFIG_NAME).stat().st_mtime_ns
    assert not use_fused(folder).changed
    assert contents(folder) == before and (folder / CONFIG_NAME).stat().st_mtime_ns == stamp


def test_a_second_call_brings_a_newer_library_and_keeps_the_first_original(folder, library):
    use_fused(folder)
    library.write_bytes(b"a newer library")
    edited(folder, intra_op_num_threads=3)
    assert use_fused(folder).changed
    assert (folder / LIBRARY_NAME).read_bytes() == b"a newer library"
    assert (folder / BACKUP_NAME).read_text() == CONFIG


def test_a_process_that_runs_the_old_library_keeps_its_file(folder, library):
    use_fused(folder)
    with open(folder / LIBRARY_NAME, "rb") as running:
        library.write_bytes(b"a newer library")
        use_fused(folder)
        assert running.read() == b"the library"


def test_a_link_to_the_library_becomes_a_copy(folder, library):
    """onnxruntime-genai follows the link, and refuses a library outside of the folder."""
    (folder / LIBRARY_NAME).symlink_to(library)
    use_fused(folder)
    assert not (folder / LIBRARY_NAME).is_symlink() and library.read_bytes() == b"the library"


def test_undo_restores_every_byte(folder):
    before = contents(folder)
    use_fused(folder)
    report = use_fused(folder, undo=True)
    assert contents(folder) == before
    assert report.changed and (report.model, report.library) == ("model.onnx", None)
    assert not use_fused(folder, undo=True).changed
    assert contents(folder) == before


def test_undo_keeps_what_was_edited_since(folder):
    use_fused(folder)
    edited(folder, intra_op_num_threads=4)
    use_fused(folder)
    use_fused(folder, undo=True)
    content = json.loads(CONFIG)
    content["model"]["decoder"]["session_options"]["intra_op_num_threads"] = 4
    assert config_of(folder) == json.dumps(content, indent=4)
    assert sorted(contents(folder)) == [CONFIG_NAME, "model.onnx", "model_hina.onnx"]


def test_undo_without_the_original_says_what_to_do(folder):
    use_fused(folder)
    (folder / BACKUP_NAME).unlink()
    before = contents(folder)
    with pytest.raises(OrtHinaError, match=f"{BACKUP_NAME} does not exist.*set model.decoder.filename"):
        use_fused(folder, undo=True)
    assert contents(folder) == before


def test_a_folder_that_was_built_again_keeps_its_new_configuration(folder):
    use_fused(folder)
    rebuilt = CONFIG.replace('"top_k": 50', '"top_k": 40')
    (folder / CONFIG_NAME).write_text(rebuilt)
    use_fused(folder)
    assert (folder / BACKUP_NAME).read_text() == rebuilt
    use_fused(folder, undo=True)
    assert config_of(folder) == rebuilt


def test_undo_does_not_bring_back_the_configuration_of_an_earlier_build(folder):
    use_fused(folder)
    rebuilt = CONFIG.replace('"top_k": 50', '"top_k": 40')
    (folder / CONFIG_NAME).write_text(rebuilt)
    assert not use_fused(folder, undo=True).changed
    assert config_of(folder) == rebuilt


@pytest.mark.parametrize(
    ("options", "threads"),
    [
        ({"intra_op_num_threads": 4}, "4"),
        ({"intra_op_num_threads": 4, "ort_hina.threads": "2"}, "4"),
        ({"intra_op_num_threads": 0}, None),
        ({"ort_hina.threads": "2"}, "2"),
        ({}, None),
    ],
)
def test_operators_plan_for_the_threads_of_the_session(folder, options, threads):
    edited(folder, **options)
    before = config_of(folder)
    use_fused(folder)
    assert options_of(folder).get("ort_hina.threads") == threads
    use_fused(folder, undo=True)
    assert config_of(folder) == before


def test_session_options_are_made_where_there_are_none(tmp_path, library):
    config = '{"model": {"decoder": {"filename": "model.onnx"}}}\n'
    folder = make_folder(tmp_path / "folder", config)
    use_fused(folder)
    assert options_of(folder) == {"custom_ops_library": LIBRARY_NAME} and config_of(folder).endswith("}\n")
    use_fused(folder, undo=True)
    assert config_of(folder) == config


def test_an_absolute_path_of_the_library_becomes_the_copy(folder, library):
    edited(folder, custom_ops_library=str(library))
    use_fused(folder)
    assert options_of(folder)["custom_ops_library"] == LIBRARY_NAME
    use_fused(folder, undo=True)
    assert options_of(folder)["custom_ops_library"] == str(library)


@pytest.mark.parametrize("text", ['"größe"', '"gr\\u00f6\\u00dfe"'])
def test_letters_stay_as_they_were_written(tmp_path, library, text):
    folder = make_folder(tmp_path / "folder", CONFIG.replace('"gptoss"', text))
    use_fused(folder)
    assert f'"type": {text}\n' in config_of(folder)


def test_names_beyond_ascii_and_folders_in_names(tmp_path, library):
    folder = make_folder(tmp_path / "folder", CONFIG.replace("model.onnx", "onnx/mödel 1.5.onnx"), "other")
    (folder / "onnx").mkdir()
    (folder / "onnx" / "mödel 1.5_hina.onnx").write_bytes(b"a model")
    assert use_fused(folder).model == "onnx/mödel 1.5_hina.onnx"
    assert json.loads(config_of(folder))["model"]["decoder"]["filename"] == "onnx/mödel 1.5_hina.onnx"


def test_permissions_are_kept(folder, library):
    (folder / CONFIG_NAME).chmod(0o640)
    library.chmod(0o755)
    use_fused(folder)
    modes = {name: (folder / name).stat().st_mode & 0o777 for name in (CONFIG_NAME, BACKUP_NAME, LIBRARY_NAME)}
    assert modes == {CONFIG_NAME: 0o640, BACKUP_NAME: 0o640, LIBRARY_NAME: 0o755}
    use_fused(folder, undo=True)
    assert (folder / CONFIG_NAME).stat().st_mode & 0o777 == 0o640


def test_a_linked_configuration_leaves_the_file_behind_it(folder, tmp_path):
    """Downloaded models are folders of links into a store that other folders share."""
    stored = tmp_path / "stored"
    shutil.move(folder / CONFIG_NAME, stored)
    (folder / CONFIG_NAME).symlink_to(stored)
    use_fused(folder)
    assert stored.read_text() == CONFIG and options_of(folder)["custom_ops_library"] == LIBRARY_NAME


def test_an_interrupted_call_leaves_a_folder_that_works(folder, monkeypatch):
    """The configuration is replaced last: until then it is the old one."""
    replaced = []

    def replace(source, target):
        replaced.append(Path(target).name)
        if replaced[-1] == CONFIG_NAME:
            raise OSError("no space left")
        os.rename(source, target)

    monkeypatch.setattr(genai.os, "replace", replace)
    with pytest.raises(OSError, match="no space left"):
        use_fused(folder)
    assert replaced == [LIBRARY_NAME, BACKUP_NAME, CONFIG_NAME]
    assert config_of(folder) == CONFIG and not [name for name in contents(folder) if name.endswith(".tmp")]


def test_no_folder(tmp_path):
    with pytest.raises(OrtHinaError, match="none does not exist; expected a folder that holds genai_config.json"):
        use_fused(tmp_path / "none")


def test_a_file_instead_of_its_folder(folder):
    with pytest.raises(OrtHinaError, match="model.onnx is a file; expected the folder that holds"):
        use_fused(folder / "model.onnx")


@pytest.mark.parametrize("undo", [False, True])
def test_no_configuration(tmp_path, undo):
    with pytest.raises(OrtHinaError, match="holds no genai_config.json: expected a folder that .* builder wrote"):
        use_fused(tmp_path, undo=undo)


@pytest.mark.parametrize(
    ("config", "message"),
    [
        (b"", "is not JSON: Expecting value"),
        (b'{"model": ', "is not JSON: Expecting value"),
        (b"\xff\xfe{}", "is not JSON: 'utf-8' codec"),
        (b"[1, 2]", r"expected an object as the whole, got \[1, 2\]"),
        (b"{}", "expected an object as model, got null"),
        (b'{"model": {"decoder": "model.onnx"}}', 'expected an object as model.decoder, got "model.onnx"'),
        (b'{"model": {"decoder": {}}}', "as model.decoder.filename, got None"),
        (b'{"model": {"decoder": {"filename": ""}}}', "as model.decoder.filename, got ''"),
        (b'{"model": {"decoder": {"filename": 3}}}', "as model.decoder.filename, got 3"),
        (b'{"model": {"decoder": {"pipeline": []}}}', "as model.decoder.filename, got a pipeline of several files"),
        (
            b'{"model": {"decoder": {"filename": "model.onnx", "session_options": null}}}',
            "expected an object as model.decoder.session_options, got null",
        ),
    ],
)
@pytest.mark.parametrize("undo", [False, True])
def test_a_broken_configuration(folder, config, message, undo):
    (folder / CONFIG_NAME).write_bytes(config)
    before = contents(folder)
    with pytest.raises(OrtHinaError, match=f"{CONFIG_NAME}.*{message}"):
        use_fused(folder, undo=undo)
    assert contents(folder) == before


def test_no_fused_model_says_how_to_make_it(folder):
    (folder / "model_hina.onnx").unlink()
    before = contents(folder)
    command = f"ort-hina fuse '{folder / 'model.onnx'}'"
    with pytest.raises(OrtHinaError) as raised:
        use_fused(folder)
    assert str(raised.value) == f"there is no fused model {folder / 'model_hina.onnx'}: write it with: {command}"
    assert contents(folder) == before


def test_a_fused_model_that_was_removed_again(folder):
    use_fused(folder)
    (folder / "model_hina.onnx").unlink()
    with pytest.raises(OrtHinaError, match="ort-hina fuse .*/model.onnx"):
        use_fused(folder)
    assert use_fused(folder, undo=True).model == "model.onnx"


@pytest.mark.parametrize("other", ["other_ops.so", 1])
def test_another_library_is_not_replaced(folder, other):
    edited(folder, custom_ops_library=other)
    before = contents(folder)
    with pytest.raises(OrtHinaError, match=f"is {other!r} already, and onnxruntime-genai registers one library only"):
        use_fused(folder)
    assert contents(folder) == before


def test_a_library_that_was_not_built(folder, monkeypatch):
    def missing():
        raise OrtHinaError("the library was not found")

    monkeypatch.setattr(genai, "library_path", missing)
    before = contents(folder)
    with pytest.raises(OrtHinaError, match="the library was not found"):
        use_fused(folder)
    assert contents(folder) == before


def test_the_step_after_fusing(folder):
    assert next_step(folder / "model_hina.onnx") == f"ort-hina genai '{folder}'"
    assert next_step(folder / "other.onnx") is None
    use_fused(folder)
    assert next_step(folder / "model_hina.onnx") is None
    (folder / CONFIG_NAME).write_text("{")
    assert next_step(folder / "model_hina.onnx") is None
    (folder / CONFIG_NAME).unlink()
    assert next_step(folder / "model_hina.onnx") is None


def test_command(folder, capsys, tmp_path):
    facts = tmp_path / "report.json"
    assert cli.main(["genai", str(folder), "--json", str(facts)]) == 0
    config = folder / CONFIG_NAME
    assert capsys.readouterr().out == f"{config}: now runs model_hina.onnx, with the operators of {LIBRARY_NAME}\n"
    assert json.loads(facts.read_text()) == {
        "config": str(config),
        "model": "model_hina.onnx",
        "library": LIBRARY_NAME,
        "changed": True,
    }
    assert cli.main(["genai", str(folder)]) == 0
    assert capsys.readouterr().out.startswith(f"{config}: unchanged: runs model_hina.onnx")
    assert cli.main(["genai", str(folder), "--undo"]) == 0
    assert capsys.readouterr().out == f"{config}: now runs model.onnx\n"
    assert cli.main(["genai", str(tmp_path)]) == 2
    assert capsys.readouterr().err.startswith("ort-hina: error: ")


def test_fuse_tells_the_next_step(tmp_path, capsys):
    model = tmp_path / "model.onnx"
    onnx.save(looped_model(experts=4), model)
    (model.parent / CONFIG_NAME).write_text(CONFIG)
    assert cli.main(["fuse", str(model), "--verify", "none"]) == 0
    assert capsys.readouterr().out.splitlines()[-1] == f"  for onnxruntime-genai, next: ort-hina genai {model.parent}"
    assert cli.main(["fuse", str(model), "--verify", "none", "--json", "-"]) == 0
    assert json.loads(capsys.readouterr().out)["fused"] > 0


# Loads every folder that it is given at once, and lets each write 16 tokens.
GENERATE = """
import json, sys
import onnxruntime_genai as og

models = [og.Model(folder) for folder in sys.argv[1:]]
answers = []
for model in models:
    params = og.GeneratorParams(model)
    params.set_search_options(max_length=20, do_sample=False)
    generator = og.Generator(model, params)
    generator.append_tokens([[5, 6, 7, 8]])
    while not generator.is_done():
        generator.generate_next_token()
    answers.append([int(token) for token in generator.get_sequence(0)])
print(json.dumps(answers))
"""


def generate(*folders: str | os.PathLike, cwd: Path) -> list[list[int]]:
    """The tokens that onnxruntime-genai writes, from each of `folders`, in one process of the exporters' environment."""
    done = run_genai(*folders, cwd=cwd)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout.splitlines()[-1])


def run_genai(*folders: str | os.PathLike, cwd: Path) -> subprocess.CompletedProcess[str]:
    command = [exporters_python(), "-c", GENERATE, *folders]
    return subprocess.run(command, cwd=cwd, capture_output=True, text=True, timeout=300)


@pytest.fixture(scope="module")
def built(tmp_path_factory) -> dict[str, Path]:
    """By family, a folder as onnxruntime-genai's builder wrote it."""
    python = exporters_python()
    if python is None:
        pytest.skip("needs onnxruntime-genai in an environment of its own: make exporters")
    found = subprocess.run([python, "-c", "import onnxruntime_genai"], capture_output=True, text=True)
    if found.returncode != 0:
        pytest.skip(f"{python} cannot import onnxruntime_genai: {found.stderr.strip().splitlines()[-1]}")
    exports = [Export(family, "genai") for family in ("gpt_oss", "lfm2_moe")]
    done = list(export_all(exports, tmp_path_factory.mktemp("built")))
    assert [exported.error for exported in done] == [None, None]
    return {exported.export.family: exported.path.parent for exported in done}


@pytest.fixture(scope="module")
def original(built, tmp_path_factory) -> dict[str, list[int]]:
    """By family, the tokens of the folder as it was built."""
    answers = generate(*built.values(), cwd=tmp_path_factory.mktemp("elsewhere"))
    return dict(zip(built, answers, strict=True))


def converted(built: Path, target: Path) -> Path:
    shutil.copytree(built, target)
    assert cli.main(["fuse", str(target / "model.onnx")]) == 0
    assert cli.main(["genai", str(target)]) == 0
    return target


@pytest.mark.slow
@pytest.mark.parametrize("family", ["gpt_oss", "lfm2_moe"])
def test_genai_writes_the_same_tokens(built, original, family, tmp_path):
    folder = converted(built[family], tmp_path / "folder")
    assert len(original[family]) == 20 and len(set(original[family])) > 10
    (folder / "model.onnx").unlink()  # so that it cannot be what runs
    assert generate(folder, cwd=tmp_path) == [original[family]]
    before, after = (json.loads(config_of(place)) for place in (built[family], folder))
    for content in (before, after):
        for name in ("filename", "session_options"):
            del content["model"]["decoder"][name]
    assert after == before


@pytest.mark.slow
def test_genai_hands_our_entries_to_the_library(built, tmp_path):
    """The library refuses what is no number: so it is registered, and after the entries are set."""
    folder = converted(built["gpt_oss"], tmp_path / "folder")
    edited(folder, **{"ort_hina.threads": "none"})
    done = run_genai(folder, cwd=tmp_path)
    assert done.returncode != 0
    assert "ort_hina.threads: expected a number of threads, got 'none'" in done.stderr


@pytest.mark.slow
def test_a_folder_that_was_moved_and_is_opened_from_elsewhere(built, original, tmp_path):
    moved = tmp_path / "größer als 1" / "Mödel folder"
    moved.parent.mkdir()
    shutil.move(converted(built["gpt_oss"], tmp_path / "folder"), moved)
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    for folder, cwd in ((moved, elsewhere), (".", moved), (f"../{moved.parent.name}/{moved.name}", elsewhere)):
        assert generate(folder, cwd=cwd) == [original["gpt_oss"]]


@pytest.mark.slow
def test_two_models_in_one_process(built, original, tmp_path):
    """Two copies of the library, and one of them registered twice."""
    gpt, lfm = (converted(built[family], tmp_path / family) for family in ("gpt_oss", "lfm2_moe"))
    answers = generate(gpt, lfm, gpt, built["gpt_oss"], cwd=tmp_path)
    assert answers == [original["gpt_oss"], original["lfm2_moe"], original["gpt_oss"], original["gpt_oss"]]


@pytest.mark.slow
def test_threads_of_the_session_reach_the_operators(built, original, tmp_path):
    folder = converted(built["gpt_oss"], tmp_path / "folder")
    edited(folder, intra_op_num_threads=2)
    use_fused(folder)
    assert options_of(folder)["ort_hina.threads"] == "2"
    assert generate(folder, cwd=tmp_path) == [original["gpt_oss"]]


@pytest.mark.slow
def test_genai_runs_the_original_again(built, original, tmp_path):
    folder = converted(built["gpt_oss"], tmp_path / "folder")
    assert cli.main(["genai", "--undo", str(folder)]) == 0
    (folder / "model_hina.onnx").unlink()
    assert contents(folder) == contents(built["gpt_oss"])
    assert generate(folder, cwd=tmp_path) == [original["gpt_oss"]]
