# Points FindPython to Python's C headers: the interpreter's own, or, where Debian's python3-dev is not installed, what
# scripts/fetch_python_headers.sh unpacks under .deps/ (which is run if it has not been). Include it before
# find_package(pybind11), which uses the Python found here.
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter)

execute_process(
  COMMAND "${Python_EXECUTABLE}" -c "import sysconfig; print(sysconfig.get_path('include'))"
  OUTPUT_VARIABLE _python_include
  OUTPUT_STRIP_TRAILING_WHITESPACE
  COMMAND_ERROR_IS_FATAL ANY)

if(NOT EXISTS "${_python_include}/Python.h")
  set(_python_version "${Python_VERSION_MAJOR}.${Python_VERSION_MINOR}")
  set(_python_deps "${CMAKE_SOURCE_DIR}/.deps/python")
  message(STATUS "Python's C headers are not in ${_python_include}: fetching them from Debian's libpython-dev")
  execute_process(
    COMMAND bash "${CMAKE_SOURCE_DIR}/scripts/fetch_python_headers.sh" "${_python_deps}" "${_python_version}"
    RESULT_VARIABLE _fetch_status)
  if(NOT _fetch_status EQUAL 0)
    message(FATAL_ERROR
      "Python's C headers (Python.h) were not found in ${_python_include}, and fetching them failed. "
      "Install them:  apt-get install python3-dev")
  endif()
  set(_python_include "${_python_deps}/python${_python_version}")
  set(Python_INCLUDE_DIR "${_python_include}" CACHE PATH "Folder that holds Python.h" FORCE)
endif()
message(STATUS "Python headers: ${_python_include}")
find_package(Python 3.11 REQUIRED COMPONENTS Interpreter Development.Module)
