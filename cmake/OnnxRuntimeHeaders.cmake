# Defines the target onnxruntime_headers. Looks, in this order, at -DORT_HINA_ORT_INCLUDE, at an installed
# libonnxruntime-dev, and at what scripts/fetch_ort_headers.sh unpacks under .deps/ (which is run if it has not been).
set(ORT_HINA_ORT_INCLUDE "" CACHE PATH "Folder that holds onnxruntime_cxx_api.h")
set(_ort_deps "${CMAKE_SOURCE_DIR}/.deps/onnxruntime")

# Only these folders: a header of another version somewhere on the compiler's path must not win.
function(_find_ort_headers)
  find_path(ORT_HINA_ORT_HEADERS onnxruntime_cxx_api.h
    PATHS ${ARGN}
    PATH_SUFFIXES onnxruntime onnxruntime/core/session
    NO_DEFAULT_PATH)
endfunction()

unset(ORT_HINA_ORT_HEADERS CACHE)  # looked up each time: the folder named, or what is installed, may have changed
if(ORT_HINA_ORT_INCLUDE)
  _find_ort_headers("${ORT_HINA_ORT_INCLUDE}")
  if(NOT ORT_HINA_ORT_HEADERS)
    message(FATAL_ERROR "ORT_HINA_ORT_INCLUDE is ${ORT_HINA_ORT_INCLUDE}, but there is no onnxruntime_cxx_api.h in it")
  endif()
else()
  _find_ort_headers(/usr/include /usr/local/include "${_ort_deps}")
endif()

if(NOT ORT_HINA_ORT_HEADERS)
  message(STATUS "ONNX Runtime's headers are not installed: fetching Debian's libonnxruntime-dev")
  execute_process(COMMAND bash "${CMAKE_SOURCE_DIR}/scripts/fetch_ort_headers.sh" "${_ort_deps}")
  _find_ort_headers("${_ort_deps}")
endif()
if(NOT ORT_HINA_ORT_HEADERS)
  message(FATAL_ERROR
    "ONNX Runtime's C++ headers (onnxruntime_cxx_api.h) were not found, and fetching them failed. Either\n"
    "  install them:  apt-get install libonnxruntime-dev   (Debian 13 and newer), or\n"
    "  fetch them:    scripts/fetch_ort_headers.sh DIR     (on a machine that reaches a Debian archive;\n"
    "                 ORT_HINA_DEBIAN_MIRROR=URL names one), and point to them with\n"
    "                 CMAKE_ARGS=-DORT_HINA_ORT_INCLUDE=DIR make build")
endif()
message(STATUS "ONNX Runtime headers: ${ORT_HINA_ORT_HEADERS}")

add_library(onnxruntime_headers INTERFACE)
target_include_directories(onnxruntime_headers SYSTEM INTERFACE "${ORT_HINA_ORT_HEADERS}")
# The function table is handed over by the host process: nothing of onnxruntime is linked.
target_compile_definitions(onnxruntime_headers INTERFACE ORT_API_MANUAL_INIT)
