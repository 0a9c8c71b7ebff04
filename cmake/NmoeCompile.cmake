# Compiler settings shared by every target.
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CXX_STANDARD_REQUIRED ON)
set(CMAKE_CXX_EXTENSIONS OFF)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)

find_program(NMOE_CCACHE ccache)
if(NMOE_CCACHE)
  set(CMAKE_CXX_COMPILER_LAUNCHER ${NMOE_CCACHE})
  set(CMAKE_CUDA_COMPILER_LAUNCHER ${NMOE_CCACHE})
endif()

# Everything C++ inherits these through nmoe_compile.
add_library(nmoe_compile INTERFACE)
target_include_directories(nmoe_compile INTERFACE ${CMAKE_SOURCE_DIR}/src)
# Designated initialisers leave members at their defaults on purpose: no warning about those. The last three are
# false alarms of GCC 12 inside std::string and fmt at -O3.
set(NMOE_WARNINGS -Wall -Wextra -Wpedantic -Wshadow -Wconversion -Wno-sign-conversion
  -Wno-missing-field-initializers -Werror
  $<$<CXX_COMPILER_ID:GNU>:-Wno-restrict> $<$<CXX_COMPILER_ID:GNU>:-Wno-stringop-overflow>
  $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>
  $<$<CXX_COMPILER_ID:Clang>:-Wno-error>)  # clang only builds fuzzers
target_compile_options(nmoe_compile INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${NMOE_WARNINGS}>")

# The instruction set of everything but the program's entry point, which checks for it (cli/program.cpp).
# Not -march=native: a binary must run on any machine of the named level.
add_library(nmoe_isa INTERFACE)
target_compile_options(nmoe_isa INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3>)

if(NMOE_SANITIZE)
  target_compile_options(nmoe_compile INTERFACE -fsanitize=${NMOE_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(nmoe_compile INTERFACE -fsanitize=${NMOE_SANITIZE})
  if(NMOE_SANITIZE MATCHES "undefined")
    # A third of the compiler's time, for little: a null pointer faults anyway, object sizes are known to optimised code
    # only, no class here is cast to one that it is not known to be, and what an overflown pointer reads
    # AddressSanitizer sees.
    target_compile_options(nmoe_compile INTERFACE
      -fno-sanitize=null,nonnull-attribute,returns-nonnull-attribute,object-size,vptr,pointer-overflow)
  endif()
  if(NMOE_SANITIZE STREQUAL "thread")  # without optimisation GCC does not see that a failed check never returns
    target_compile_options(nmoe_compile INTERFACE -O1)
  endif()
endif()

# Folders whose loops take time (HOT) are optimised, others a little only, which is a third less to compile, or for size
# (SMALL), which is a third less code in the same time. In sanitizer builds, most of whose time is compiling, HOT is a
# little and the others are not optimised.
if(NMOE_SANITIZE)
  set(NMOE_HOT_FLAGS -O1)
  set(NMOE_OTHER_FLAGS)
else()
  set(NMOE_HOT_FLAGS)
  set(NMOE_OTHER_FLAGS $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-O1>)
  set(NMOE_SMALL_FLAGS $<$<AND:$<CONFIG:Release>,$<COMPILE_LANGUAGE:CXX>>:-Os>)
endif()

# Where nobody edits, every source is compiled but once: then several files of a folder as one (nmoe_unite below). So where
# tests are not built, and in what scripts configure. Builds without compile one file again where one has changed, and find
# an #include that is missing.
set(unite ON)
if(NMOE_BUILD_TESTS)
  set(unite OFF)
endif()
option(NMOE_UNITE "Compile several files of a folder as one: half the time where nothing was compiled before" ${unite})

# Sanitizer builds, which share nothing with others, also read what most of src/ includes and others wrote from a
# precompiled header. It would keep apart what builds for CPU and GPUs share through ccache.
function(nmoe_precompile name)
  file(WRITE ${CMAKE_BINARY_DIR}/precompiled/${name}.cpp "")
  add_library(${name} OBJECT ${CMAKE_BINARY_DIR}/precompiled/${name}.cpp)
  target_link_libraries(${name} PRIVATE nmoe_compile nmoe_isa fmt::fmt)
  target_compile_options(${name} PRIVATE ${ARGN})
  target_precompile_headers(${name} PRIVATE
    <fmt/format.h>
    <algorithm> <array> <chrono> <cmath> <cstdint> <cstring> <filesystem> <functional> <limits> <map> <memory>
    <optional> <span> <string> <string_view> <thread> <utility> <vector>)
endfunction()

# Compiles up to eight files of a target as one, which then read the headers that they share once: tests always, half of
# their time, src/ with NMOE_UNITE and under sanitizers. No two files of a target may give two things one name therefore,
# anonymous namespaces or not.
function(nmoe_unite name)
  set_target_properties(${name} PROPERTIES UNITY_BUILD ON UNITY_BUILD_BATCH_SIZE 8)
  target_link_libraries(${name} PRIVATE nmoe_united)
endfunction()
# Behind other warnings: two that are right only where files are apart.
add_library(nmoe_united INTERFACE)
target_compile_options(nmoe_united INTERFACE
  $<$<COMPILE_LANGUAGE:CXX>:-Wno-shadow> $<$<CXX_COMPILER_ID:GNU>:$<$<COMPILE_LANGUAGE:CXX>:-Wno-subobject-linkage>>)

# nmoe_library(NAME SOURCES... [DEPENDS libs...] [HOT | SMALL] [OWN_FLAGS]): one folder of src/ as a static library. HOT:
# its loops take time. SMALL: much code that runs now and then. OWN_FLAGS: compiled as no other code is, so that it cannot
# share a precompiled header.
function(nmoe_library name)
  cmake_parse_arguments(ARG "HOT;SMALL;OWN_FLAGS" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC nmoe_compile ${ARG_DEPENDS} PRIVATE nmoe_isa ${ARG_PRIVATE_DEPENDS})
  set(precompiled nmoe_precompiled)
  if(ARG_HOT)
    target_compile_options(${name} PRIVATE ${NMOE_HOT_FLAGS})
    set(precompiled nmoe_precompiled_hot)
  elseif(ARG_SMALL AND NOT NMOE_SANITIZE)
    target_compile_options(${name} PRIVATE ${NMOE_SMALL_FLAGS})
  else()
    target_compile_options(${name} PRIVATE ${NMOE_OTHER_FLAGS})
  endif()
  if(NMOE_UNITE OR NMOE_SANITIZE)
    nmoe_unite(${name})
  endif()
  if(NMOE_SANITIZE AND NOT ARG_OWN_FLAGS)
    target_precompile_headers(${name} REUSE_FROM ${precompiled})
  endif()
endfunction()
