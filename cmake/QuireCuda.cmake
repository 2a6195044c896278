# The CUDA device, its collectives, views and kernels: files in folders named cuda, .c and .cu, compiled with
# QUIRE_CUDA=ON alone. Files in folders named none say in their place that they are not there. A file needs no line
# here.
#
# The CUDA runtime is linked statically and finds the driver by itself when it is first called, so a program built with
# CUDA starts where there is no driver; NCCL is opened by name at run time. Code is for Hopper (sm_90a: wgmma,
# setmaxnreg).
if(QUIRE_CUDA)
  option(QUIRE_RACECHECK "Kernels whose barriers compute-sanitizer's racecheck understands (slower)" OFF)
  if(NOT DEFINED CMAKE_CUDA_ARCHITECTURES)
    set(CMAKE_CUDA_ARCHITECTURES 90a-real)
  endif()
  enable_language(CUDA)
  find_package(CUDAToolkit 12.8 REQUIRED)
  set(CMAKE_CUDA_STANDARD 17)
  set(CMAKE_CUDA_STANDARD_REQUIRED ON)
  set(CMAKE_CUDA_EXTENSIONS OFF)
  set(CMAKE_CUDA_VISIBILITY_PRESET hidden)
  set(CMAKE_CUDA_RUNTIME_LIBRARY Static)
  set(CMAKE_CUDA_FLAGS_RELEASE "-O3 -lineinfo")
  # for quire.pc, as CUDA::cudart_static has it, with the runtime of C++ that nvcc's stubs want
  get_target_property(cudart CUDA::cudart_static IMPORTED_LOCATION)
  get_filename_component(cudart_folder ${cudart} DIRECTORY)
  set(QUIRE_CUDA_LIBS_PRIVATE "-L${cudart_folder} -lcudart_static -lstdc++ -ldl -lrt ")
  # -fmad stays on: only what arithmetic.md fixes for the family sm90 is fixed, and kernels say fma where they mean it.
  # The host half has no exceptions; of the C++ runtime nvcc's own stubs want the guards of static variables, and are
  # not clean of -Wextra.
  set(host_flags -march=x86-64-v3,-ffp-contract=off,-fno-exceptions,-fno-rtti,-Wall,-Werror)
  target_compile_options(quire_flags INTERFACE
    "$<$<COMPILE_LANGUAGE:CUDA>:SHELL:-Xcompiler=${host_flags}>"
    $<$<COMPILE_LANGUAGE:CUDA>:-Werror=all-warnings>
    $<$<AND:$<COMPILE_LANGUAGE:CUDA>,$<BOOL:${QUIRE_RACECHECK}>>:-DQUIRE_RACECHECK>
    # zeros for subnormals, as on the CPU (arithmetic.md 1)
    $<$<COMPILE_LANGUAGE:CUDA>:-ftz=true>)
endif()

# quire_cuda_filter(list): takes out of a list of sources what this build does not have
macro(quire_cuda_filter sources)
  if(QUIRE_CUDA)
    list(FILTER ${sources} EXCLUDE REGEX "/none/")
  else()
    list(FILTER ${sources} EXCLUDE REGEX "/cuda/")
  endif()
endmacro()

# quire_cuda_sources(target): adds src/*/cuda/*.cu and what the CUDA files link
function(quire_cuda_sources target)
  if(QUIRE_CUDA)
    file(GLOB_RECURSE sources CONFIGURE_DEPENDS ${CMAKE_CURRENT_SOURCE_DIR}/src/*.cu)
    list(FILTER sources EXCLUDE REGEX "/src/(cli|bench)/")
    target_sources(${target} PRIVATE ${sources})
    target_include_directories(${target} SYSTEM PUBLIC ${CUDAToolkit_INCLUDE_DIRS})
    target_link_libraries(${target} PUBLIC CUDA::cudart_static)
  endif()
endfunction()
