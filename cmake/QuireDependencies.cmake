# Everything here is a package of Debian 12; tools/setup installs what is missing (docs/building.md has the table).
add_library(quire_dependencies INTERFACE)
find_package(PkgConfig)
if(NOT PkgConfig_FOUND)
  message(FATAL_ERROR "pkg-config is missing; run tools/setup")
endif()

function(quire_dependency name module)
  pkg_check_modules(${name} IMPORTED_TARGET ${module})
  if(NOT ${name}_FOUND)
    message(FATAL_ERROR "library ${module} is missing; run tools/setup")
  endif()
  target_link_libraries(quire_dependencies INTERFACE PkgConfig::${name})
endfunction()

quire_dependency(LIBCRYPTO libcrypto)
quire_dependency(LIBEVENT libevent_core)
quire_dependency(YAML yaml-0.1)
quire_dependency(JANSSON jansson)
quire_dependency(PCRE2 libpcre2-8)

# header only (XXH_INLINE_ALL), so there is nothing to link
find_path(XXHASH_INCLUDE xxhash.h)
if(NOT XXHASH_INCLUDE)
  message(FATAL_ERROR "xxhash.h is missing; run tools/setup")
endif()

# kernels use no libm; the loader and the benches do
target_link_libraries(quire_dependencies INTERFACE m)
