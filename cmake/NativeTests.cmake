# With ORT_HINA_NATIVE_TESTS_ONLY, the core and tests/native are all that is built: no Python, no ONNX Runtime.
option(ORT_HINA_NATIVE_TESTS_ONLY "Build the native tests only" OFF)
option(ORT_HINA_STATIC "Native tests that need nothing but a Linux kernel" OFF)
set(ORT_HINA_SANITIZE "" CACHE STRING "Sanitizers of the native tests, as in -fsanitize=")

if(ORT_HINA_SANITIZE)
  if(NOT ORT_HINA_NATIVE_TESTS_ONLY)
    message(FATAL_ERROR "ORT_HINA_SANITIZE is for the native tests: no host of the library has a sanitizer's run time")
  endif()
  add_compile_options(-g -fno-omit-frame-pointer -fsanitize=${ORT_HINA_SANITIZE} -fno-sanitize-recover=all)
  add_link_options(-fsanitize=${ORT_HINA_SANITIZE})
endif()
