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
  $<$<CXX_COMPILER_ID:GNU>:-Wno-array-bounds>)
target_compile_options(nmoe_compile INTERFACE "$<$<COMPILE_LANGUAGE:CXX>:${NMOE_WARNINGS}>")

# The instruction set of everything but the program's entry point, which checks for it (cli/main.cpp).
# Not -march=native: a binary must run on any machine of the named level.
add_library(nmoe_isa INTERFACE)
target_compile_options(nmoe_isa INTERFACE $<$<COMPILE_LANGUAGE:CXX>:-march=x86-64-v3>)

if(NMOE_SANITIZE)
  target_compile_options(nmoe_compile INTERFACE -fsanitize=${NMOE_SANITIZE} -fno-omit-frame-pointer
    -fno-sanitize-recover=all)
  target_link_options(nmoe_compile INTERFACE -fsanitize=${NMOE_SANITIZE})
  if(NMOE_SANITIZE MATCHES "undefined")
    # A quarter of the compiler's time, for little: a null pointer faults anyway, object sizes are known to optimised
    # code only, and no class here is cast to one that it is not known to be.
    target_compile_options(nmoe_compile INTERFACE -fno-sanitize=null,object-size,vptr)
  endif()
  if(NMOE_SANITIZE STREQUAL "thread")  # without optimisation GCC does not see that a failed check never returns
    target_compile_options(nmoe_compile INTERFACE -O1)
  endif()
endif()

# nmoe_library(NAME SOURCES... [DEPENDS libs...] [HOT]): one folder of src/ as a static library. HOT: its tests compute so
# much that sanitizer builds, which are not optimised because compiling is most of their time, optimise it.
function(nmoe_library name)
  cmake_parse_arguments(ARG "HOT" "" "SOURCES;DEPENDS;PRIVATE_DEPENDS" ${ARGN})
  add_library(${name} STATIC ${ARG_SOURCES})
  target_link_libraries(${name} PUBLIC nmoe_compile ${ARG_DEPENDS} PRIVATE nmoe_isa ${ARG_PRIVATE_DEPENDS})
  if(NMOE_SANITIZE AND ARG_HOT)
    target_compile_options(${name} PRIVATE -O1)
  endif()
endfunction()
