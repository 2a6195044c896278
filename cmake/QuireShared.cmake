# libquire.so: the files of src/api over those members of libquire.a that they need, exports as src/api/quire.map says.
# It depends on libcrypto alone. The example, the Python package and the tests of all three are here too.
file(GLOB QUIRE_API_SOURCES CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/api/*.c)
set(map ${CMAKE_CURRENT_SOURCE_DIR}/src/api/quire.map)
add_library(quire_shared SHARED ${QUIRE_API_SOURCES} ${CMAKE_CURRENT_SOURCE_DIR}/src/engine/version.c)
set_target_properties(quire_shared PROPERTIES
                      OUTPUT_NAME quire VERSION ${PROJECT_VERSION} SOVERSION 0 LINK_DEPENDS ${map})
target_include_directories(quire_shared INTERFACE ${CMAKE_CURRENT_SOURCE_DIR}/include)
target_link_libraries(quire_shared PRIVATE quire_static)
target_link_options(quire_shared PRIVATE -Wl,--as-needed -Wl,--version-script=${map})
if(QUIRE_SANITIZE STREQUAL "" AND NOT QUIRE_FUZZ)
  target_link_options(quire_shared PRIVATE -Wl,-z,defs) # a sanitizer's symbols come from the program
endif()
install(TARGETS quire_shared LIBRARY DESTINATION lib)

# the example sees what an embedding engine sees: the public headers and the shared library
add_executable(embed ${CMAKE_CURRENT_SOURCE_DIR}/examples/embed.c)
target_link_libraries(embed PRIVATE quire_shared quire_flags)
set_target_properties(embed PROPERTIES RUNTIME_OUTPUT_DIRECTORY ${CMAKE_BINARY_DIR}/examples)

function(quire_api_test name timeout)
  add_test(NAME ${name} COMMAND ${ARGN})
  set_tests_properties(${name} PROPERTIES TIMEOUT ${timeout} LABELS quick SKIP_RETURN_CODE 77
                       ENVIRONMENT "${QUIRE_TEST_ENVIRONMENT}" WORKING_DIRECTORY ${CMAKE_BINARY_DIR})
endfunction()

if(QUIRE_TESTS)
  set(library $<TARGET_FILE:quire_shared>)
  quire_api_test(example_embed 60 embed)
  quire_api_test(api_symbols 60 Python3::Interpreter -B ${tests_dir}/api/check_symbols.py
                 ${CMAKE_SOURCE_DIR} ${library})
  if(QUIRE_SANITIZE STREQUAL "" AND NOT QUIRE_FUZZ) # an interpreter and a package know nothing of a sanitizer's runtime
    quire_api_test(python_binding 60 Python3::Interpreter -B
                   ${CMAKE_SOURCE_DIR}/bindings/python/test_quire.py ${library})
    quire_api_test(api_install 120 Python3::Interpreter -B ${tests_dir}/api/check_install.py
                   ${CMAKE_SOURCE_DIR} ${CMAKE_BINARY_DIR} ${CMAKE_COMMAND} ${CMAKE_C_COMPILER})
    if(QUIRE_CUDA) # other libraries stand in its quire.pc, and it needs no GPU
      set_tests_properties(api_install PROPERTIES LABELS "quick;cuda")
    endif()
  endif()
endif()
