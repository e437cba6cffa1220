"""Finding the library and registering it on session options."""

from __future__ import annotations

import os
import subprocess
import sys

import onnxruntime
import pytest

import ort_hina
from ort_hina import library
from ort_hina.errors import OrtHinaError


def test_importing_the_package_imports_no_framework():
    code = "import ort_hina, sys; print([m for m in ('torch', 'optimum', 'onnxruntime', 'onnx') if m in sys.modules])"
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert result.stdout.strip() == "[]"


def test_every_public_name_exists_and_an_unknown_one_is_an_attribute_error():
    assert all(getattr(ort_hina, name) is not None for name in ort_hina.__all__)
    with pytest.raises(AttributeError, match="module 'ort_hina' has no attribute 'fues'"):
        _ = ort_hina.fues


def test_machine_stays_the_function_after_its_module_is_imported():
    import ort_hina.machine  # noqa: F401

    assert callable(ort_hina.machine)


def test_library_path_is_an_existing_absolute_file():
    path = ort_hina.library_path()
    assert os.path.isabs(path) and os.path.basename(path) == "libort_hina.so" and os.path.isfile(path)


def test_a_library_that_was_not_built_names_the_folders_and_the_way_out(tmp_path):
    (tmp_path / "a").mkdir()
    searched = f"{tmp_path}/a, {tmp_path}/b"
    with pytest.raises(OrtHinaError, match=rf"libort_hina.so was not found in {searched}: .*make build"):
        library._find([tmp_path / "a", tmp_path / "b"])


def test_the_second_folder_of_an_editable_installation_is_searched(tmp_path):
    for folder in ("source", "compiled"):
        (tmp_path / folder).mkdir()
    (tmp_path / "compiled" / "libort_hina.so").touch()
    assert library._find([tmp_path / "source", tmp_path / "compiled"]) == str(tmp_path / "compiled/libort_hina.so")


def test_registering_twice_is_no_error_and_a_session_can_be_created(tiny_export):
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    ort_hina.register(options)
    assert onnxruntime.InferenceSession(tiny_export(), options).get_inputs()


@pytest.mark.parametrize(("pool", "threads", "expected"), [(0, None, None), (2, None, "2"), (2, 1, "1"), (0, 3, "3")])
def test_thread_count_is_left_for_the_library_to_read(pool, threads, expected):
    options = onnxruntime.SessionOptions()
    options.intra_op_num_threads = pool
    ort_hina.register(options, threads=threads)
    assert library._entry(options, "ort_hina.threads") == expected


def test_settings_are_there_before_the_library_is_registered(monkeypatch):
    """The library reads them while it registers."""
    seen = []

    class Recorder:
        intra_op_num_threads = 2

        def get_session_config_entry(self, key):
            raise RuntimeError(key)

        def add_session_config_entry(self, key, value):
            seen.append((key, value))

        def register_custom_ops_library(self, path):
            seen.append("registered")

    monkeypatch.setattr(library, "library_path", lambda: "/somewhere/libort_hina.so")
    library.register(Recorder(), compute="bfloat16")
    assert seen[:3] == [("ort_hina.threads", "2"), ("ort_hina.compute", "bfloat16"), "registered"]


def test_another_thread_count_on_registered_options_is_refused():
    options = onnxruntime.SessionOptions()
    ort_hina.register(options, threads=2)
    ort_hina.register(options, threads=2)
    with pytest.raises(OrtHinaError, match="registered with threads=2,.*for threads=3 register new SessionOptions"):
        ort_hina.register(options, threads=3)


@pytest.mark.parametrize(("compute", "entry"), [(None, None), ("default", "default"), ("bfloat16", "bfloat16")])
def test_compute_is_left_for_the_library_to_read(compute, entry):
    options = onnxruntime.SessionOptions()
    ort_hina.register(options, compute=compute)
    assert library._entry(options, "ort_hina.compute") == entry


def test_another_compute_on_registered_options_is_refused():
    options = onnxruntime.SessionOptions()
    ort_hina.register(options)
    ort_hina.register(options, compute=None)
    with pytest.raises(OrtHinaError, match="registered with compute=the default,.*for compute=bfloat16 register new"):
        ort_hina.register(options, compute="bfloat16")


@pytest.mark.parametrize("compute", ["bf16", "float32", "", "BFLOAT16"])
def test_an_unknown_compute_is_refused(compute):
    with pytest.raises(ValueError, match=f'compute must be "default" or "bfloat16", got {compute!r}'):
        ort_hina.register(onnxruntime.SessionOptions(), compute=compute)


@pytest.mark.parametrize("mode", library.NUMA_MODES)
def test_numa_is_left_for_the_library_to_read(mode):
    options = onnxruntime.SessionOptions()
    ort_hina.register(options, numa=mode)
    assert options.get_session_config_entry("ort_hina.numa") == mode
    with pytest.raises(OrtHinaError, match=f"registered with numa={mode}, .*for numa=b?"):
        ort_hina.register(options, numa="off" if mode != "off" else "bind")


def test_an_unknown_numa_is_refused():
    with pytest.raises(ValueError, match="numa must be one of off, read, interleave, bind, got 'all'"):
        ort_hina.register(onnxruntime.SessionOptions(), numa="all")
    options = onnxruntime.SessionOptions()
    options.add_session_config_entry("ort_hina.numa", "all")
    with pytest.raises(OrtHinaError, match="ort_hina.numa: expected off, read, interleave or bind, got 'all'"):
        ort_hina.register(options)


@pytest.mark.parametrize("threads", [0, -1])
def test_thread_count_below_one_is_refused(threads):
    with pytest.raises(ValueError, match=f"threads must be at least 1, got {threads}"):
        ort_hina.register(onnxruntime.SessionOptions(), threads=threads)


@pytest.mark.parametrize("version", ["1.22.1", "1.9.0", "0.5"])
def test_old_onnxruntime_is_refused_with_both_versions(version):
    with pytest.raises(OrtHinaError, match=rf"ort_hina \S+ needs onnxruntime 1\.23 or newer, .* onnxruntime {version}"):
        library._check_onnxruntime(version)


@pytest.mark.parametrize("version", ["1.23.0", "1.32.0", "1.100.0", "2.0.0rc1", "1.33.0.dev20261101"])
def test_newer_onnxruntime_is_accepted(version):
    library._check_onnxruntime(version)


def test_register_checks_the_onnxruntime_that_is_installed(monkeypatch):
    monkeypatch.setattr(onnxruntime, "__version__", "1.22.1")
    with pytest.raises(OrtHinaError, match="1.22.1"):
        ort_hina.register(onnxruntime.SessionOptions())


def test_a_library_that_does_not_load_says_which_and_why(monkeypatch, tmp_path):
    broken = tmp_path / "libort_hina.so"
    broken.write_text("not a library")
    monkeypatch.setattr(library, "library_path", lambda: str(broken))
    with pytest.raises(OrtHinaError, match=rf"could not load {broken}"):
        ort_hina.register(onnxruntime.SessionOptions())
