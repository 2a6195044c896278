# tests/**/test_*.c      one cmocka program each, linked with libquire and tests/support/*.c
# tests/**/cuda/test_*   the same, .c or .cu, with QUIRE_CUDA=ON alone; without a GPU they end with 77: skipped
# tests/**/cuda/bench_*  timings, one program each, run by tools/gpu-suite; not tests
# tests/fuzz/fuzz_*.c    one target each; without libFuzzer it replays tests/fuzz/corpus/NAME
# tests/lint/lint_*.py   one test each
# tests/server/check_*.py  one test each, of the program
#
# A test says what it needs in a comment within its first 40 lines:
#     // ctest: timeout=300 labels=slow args=--cells,200 sources=src/bench/load_event.c
# sources: of the program, which are in no library, compiled into the test.
# Labels: quick (the default: everything without a label of its own), slow, soak (only `make soak`), sanitize (for a run
# under sanitizers, beside the quick ones), lint, fuzz, cuda (beside another; in folders named cuda by itself).
set(tests_dir ${CMAKE_SOURCE_DIR}/tests)
pkg_check_modules(CMOCKA IMPORTED_TARGET cmocka)
if(NOT CMOCKA_FOUND)
  message(FATAL_ERROR "cmocka is missing; run tools/setup, or configure with -DQUIRE_TESTS=OFF")
endif()
find_package(Python3 3.9 REQUIRED COMPONENTS Interpreter)

# support: what tests share, compiled once
file(GLOB QUIRE_SUPPORT_SOURCES CONFIGURE_DEPENDS ${tests_dir}/support/*.c ${tests_dir}/support/cuda/*.c)
quire_cuda_filter(QUIRE_SUPPORT_SOURCES)
list(FILTER QUIRE_SUPPORT_SOURCES EXCLUDE REGEX "/support/fuzz_[a-z]*\\.c$")
add_library(quire_support STATIC ${QUIRE_SUPPORT_SOURCES})
target_include_directories(quire_support PUBLIC ${tests_dir} ${tests_dir}/support)
target_compile_definitions(quire_support PUBLIC
  QUIRE_SOURCE_DIR="${CMAKE_SOURCE_DIR}" QUIRE_BINARY_DIR="${CMAKE_BINARY_DIR}")
target_link_libraries(quire_support PUBLIC quire_static PkgConfig::CMOCKA)

# the environment of every test: sanitizers stop at the first fault, and tests know where they are
set(QUIRE_TEST_ENVIRONMENT
  "QUIRE_TEST_SOURCE_DIR=${CMAKE_SOURCE_DIR}" "QUIRE_TEST_BINARY_DIR=${CMAKE_BINARY_DIR}"
  "ASAN_OPTIONS=abort_on_error=1:detect_stack_use_after_return=1:allocator_may_return_null=1"
  "UBSAN_OPTIONS=print_stacktrace=1")

# quire_test_settings(source): sets test_timeout, test_labels, test_args and test_sources from the source's "ctest:"
# comment
function(quire_test_settings source)
  set(timeout 60)
  set(labels quick)
  set(args "")
  set(sources "")
  file(STRINGS ${source} lines LIMIT_COUNT 40 REGEX "ctest:")
  foreach(line IN LISTS lines)
    if(line MATCHES "timeout=([0-9]+)")
      set(timeout ${CMAKE_MATCH_1})
    endif()
    if(line MATCHES "labels=([A-Za-z0-9_,-]+)")
      string(REPLACE "," ";" labels ${CMAKE_MATCH_1})
    endif()
    if(line MATCHES "args=([^ *]+)")
      string(REPLACE "," ";" args ${CMAKE_MATCH_1})
    endif()
    if(line MATCHES "sources=([^ *]+)")
      string(REPLACE "," ";" sources ${CMAKE_MATCH_1})
      list(TRANSFORM sources PREPEND ${CMAKE_SOURCE_DIR}/)
    endif()
  endforeach()
  # a change of that comment must be noticed without a change of the list of files
  set_property(DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY CMAKE_CONFIGURE_DEPENDS ${source})
  if(NOT QUIRE_SANITIZE STREQUAL "")
    math(EXPR timeout "${timeout} * 5")
  endif()
  set(test_timeout ${timeout} PARENT_SCOPE)
  set(test_labels "${labels}" PARENT_SCOPE)
  set(test_args "${args}" PARENT_SCOPE)
  set(test_sources "${sources}" PARENT_SCOPE)
endfunction()

function(quire_test_properties name)
  set_tests_properties(${name} PROPERTIES TIMEOUT ${test_timeout} LABELS "${test_labels}" SKIP_RETURN_CODE 77
                       ENVIRONMENT "${QUIRE_TEST_ENVIRONMENT}" WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

# unit and property tests
file(GLOB_RECURSE QUIRE_TEST_SOURCES CONFIGURE_DEPENDS ${tests_dir}/test_*.c ${tests_dir}/test_*.cu)
list(FILTER QUIRE_TEST_SOURCES EXCLUDE REGEX "/tests/support/")
quire_cuda_filter(QUIRE_TEST_SOURCES)
foreach(source IN LISTS QUIRE_TEST_SOURCES)
  get_filename_component(name ${source} NAME_WE)
  quire_test_settings(${source})
  if(source MATCHES "/cuda/")
    list(APPEND test_labels cuda)
  endif()
  add_executable(${name} ${source} ${test_sources})
  target_link_libraries(${name} PRIVATE quire_support)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests)
  add_test(NAME ${name} COMMAND ${name} ${test_args})
  quire_test_properties(${name})
endforeach()

# a library in the driver's place, by the driver's name in a folder of its own (test_cuda_why)
if(QUIRE_CUDA)
  add_library(fake_driver SHARED ${tests_dir}/device/cuda/fake_driver.c)
  set_target_properties(fake_driver PROPERTIES OUTPUT_NAME cuda SUFFIX .so.1
                        LIBRARY_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/tests/fake)
  add_dependencies(test_cuda_why fake_driver)
endif()

# timings on GPUs
file(GLOB_RECURSE QUIRE_GPU_BENCHES CONFIGURE_DEPENDS ${tests_dir}/bench_*.c ${tests_dir}/bench_*.cu)
quire_cuda_filter(QUIRE_GPU_BENCHES)
foreach(source IN LISTS QUIRE_GPU_BENCHES)
  get_filename_component(name ${source} NAME_WE)
  add_executable(${name} ${source})
  target_link_libraries(${name} PRIVATE quire_support)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bench)
endforeach()

# the program as a process, and its clients
if(TARGET quire)
  file(GLOB QUIRE_CHECKS CONFIGURE_DEPENDS ${tests_dir}/server/check_*.py)
  foreach(source IN LISTS QUIRE_CHECKS)
    get_filename_component(name ${source} NAME_WE)
    quire_test_settings(${source})
    add_test(NAME ${name} COMMAND Python3::Interpreter -B ${source})
    quire_test_properties(${name})
    set_tests_properties(${name} PROPERTIES SKIP_RETURN_CODE 77)
  endforeach()
endif()

# the maker of the tiny model
if(EXISTS ${CMAKE_SOURCE_DIR}/tools/golden/make_tiny.c)
  add_executable(make_tiny ${CMAKE_SOURCE_DIR}/tools/golden/make_tiny.c)
  target_link_libraries(make_tiny PRIVATE quire_support)
  set_target_properties(make_tiny PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/bin)
endif()

# parsers under fuzzing
file(GLOB QUIRE_FUZZ_SOURCES CONFIGURE_DEPENDS ${tests_dir}/fuzz/fuzz_*.c)
foreach(source IN LISTS QUIRE_FUZZ_SOURCES)
  get_filename_component(name ${source} NAME_WE)
  string(REGEX REPLACE "^fuzz_" "" short ${name})
  quire_test_settings(${source})
  set(corpus ${tests_dir}/fuzz/corpus/${short})
  if(QUIRE_FUZZ)
    add_executable(${name} ${source} ${test_sources} ${tests_dir}/support/fuzz_start.c)
    target_link_options(${name} PRIVATE -fsanitize=fuzzer)
    add_test(NAME ${name} COMMAND ${name} -runs=0 ${corpus})
  else()
    add_executable(${name} ${source} ${test_sources} ${tests_dir}/support/fuzz_start.c
                   ${tests_dir}/support/fuzz_main.c)
    add_test(NAME ${name} COMMAND ${name} ${corpus})
  endif()
  target_link_libraries(${name} PRIVATE quire_support)
  set_target_properties(${name} PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/fuzz)
  list(APPEND test_labels fuzz)
  quire_test_properties(${name})
endforeach()

# lints; each says on its own what it wants and prints file:line: message
file(GLOB QUIRE_LINTS CONFIGURE_DEPENDS ${tests_dir}/lint/lint_*.py)
foreach(source IN LISTS QUIRE_LINTS)
  get_filename_component(name ${source} NAME_WE)
  quire_test_settings(${source})
  add_test(NAME ${name} COMMAND Python3::Interpreter -B ${source} ${CMAKE_SOURCE_DIR})
  set(test_labels lint)
  # a lint that lacks its tool says so and is shown as skipped (77)
  quire_test_properties(${name})
endforeach()
