# One arithmetic on every machine (docs/arithmetic.md): no contraction, no fast-math, and a fixed base ISA. Files named
# *_avx512.c are compiled for AVX-512 in addition; they run only where the processor has it.
add_library(quire_flags INTERFACE)
set(CMAKE_C_STANDARD 17)
set(CMAKE_C_STANDARD_REQUIRED ON)
set(CMAKE_C_EXTENSIONS OFF)
set(CMAKE_CXX_STANDARD 17)
set(CMAKE_C_VISIBILITY_PRESET hidden)
set(CMAKE_CXX_VISIBILITY_PRESET hidden)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
set(CMAKE_EXPORT_COMPILE_COMMANDS ON)
# asserts are QUIRE_ASSERT, which NDEBUG does not touch
set(CMAKE_C_FLAGS_RELEASE "-O3 -g")
set(CMAKE_CXX_FLAGS_RELEASE "-O3 -g")

target_compile_definitions(quire_flags INTERFACE _GNU_SOURCE)
# of C and C++; nvcc passes them on to its host compiler as QuireCuda.cmake says
target_compile_options(quire_flags INTERFACE
  $<$<COMPILE_LANGUAGE:C,CXX>:-march=x86-64-v3;-ffp-contract=off;-Wall;-Wextra;-Werror>)
find_package(Threads REQUIRED)
target_link_libraries(quire_flags INTERFACE Threads::Threads)

if(QUIRE_DEBUG_ASSERTS OR QUIRE_EXPENSIVE_ASSERTS)
  target_compile_definitions(quire_flags INTERFACE QUIRE_DEBUG_ASSERTS)
endif()
if(QUIRE_EXPENSIVE_ASSERTS)
  target_compile_definitions(quire_flags INTERFACE QUIRE_EXPENSIVE_ASSERTS)
endif()

if(QUIRE_FUZZ)
  if(NOT CMAKE_C_COMPILER_ID MATCHES "Clang")
    message(FATAL_ERROR "QUIRE_FUZZ=ON needs clang: "
            "configure with -DCMAKE_C_COMPILER=clang -DCMAKE_CXX_COMPILER=clang++")
  endif()
  if(QUIRE_SANITIZE STREQUAL "")
    set(QUIRE_SANITIZE "address,undefined")
  endif()
  # the library is instrumented too, or the fuzzer would see no coverage in it
  target_compile_options(quire_flags INTERFACE -fsanitize=fuzzer-no-link)
endif()

if(NOT QUIRE_SANITIZE STREQUAL "")
  target_compile_definitions(quire_flags INTERFACE QUIRE_SANITIZED)
  target_compile_options(quire_flags INTERFACE
    $<$<COMPILE_LANGUAGE:C,CXX>:-fsanitize=${QUIRE_SANITIZE};-fno-omit-frame-pointer;-O1>)
  target_link_options(quire_flags INTERFACE -fsanitize=${QUIRE_SANITIZE})
  if(QUIRE_SANITIZE MATCHES "undefined")
    target_compile_options(quire_flags INTERFACE -fno-sanitize-recover=undefined)
  endif()
endif()

function(quire_isa_flags)
  foreach(source IN LISTS ARGN)
    if(source MATCHES "_avx512\\.c$")
      set_property(SOURCE ${source} DIRECTORY ${CMAKE_SOURCE_DIR} APPEND PROPERTY COMPILE_OPTIONS
                   -mavx512f -mavx512bw -mavx512vl -mavx512dq -mavx512bf16)
    endif()
  endforeach()
endfunction()
