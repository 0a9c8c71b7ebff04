# NMOE_CUDA_ARCH names the one architecture the CUDA kernels are compiled for.
set(NMOE_CUDA_SUPPORTED 90a 100a)
if(NMOE_CUDA_ARCH STREQUAL "")
  set(NMOE_CUDA OFF)
  return()
endif()
if(NOT NMOE_CUDA_ARCH IN_LIST NMOE_CUDA_SUPPORTED)
  message(FATAL_ERROR
    "NMOE_CUDA_ARCH=${NMOE_CUDA_ARCH} is not supported. Supported: 90a (Hopper, preset 'hopper'), "
    "100a (Blackwell, preset 'blackwell'), or empty for CPU only (preset 'cpu').")
endif()
set(CMAKE_CUDA_ARCHITECTURES ${NMOE_CUDA_ARCH}-real)
enable_language(CUDA)
if(CMAKE_CUDA_COMPILER_VERSION VERSION_LESS 13.0)
  message(FATAL_ERROR "CUDA ${CMAKE_CUDA_COMPILER_VERSION} found; nmoe needs the CUDA 13.0 toolkit or newer.")
endif()
# CMake before 3.26 does not know that nvcc speaks C++20.
if(NOT DEFINED CMAKE_CUDA20_STANDARD_COMPILE_OPTION)
  set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
  set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
endif()
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_CUDA_STANDARD_REQUIRED ON)
find_package(CUDAToolkit 13.0 REQUIRED)

# cuDNN is no part of the toolkit. Only its headers are needed to build: the program loads the library when it wants it
# (ops/cuda/vendor/cudnn_library.h), and looks last where it is now.
set(NMOE_CUDNN_MINIMUM 9.19)
find_path(NMOE_CUDNN_INCLUDE cudnn.h HINTS ENV CUDNN_HOME ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(NMOE_CUDNN_LIBRARY NAMES libcudnn.so.9 HINTS ENV CUDNN_HOME ${CUDAToolkit_LIBRARY_DIR}
  PATH_SUFFIXES lib lib64)
if(NOT NMOE_CUDNN_INCLUDE OR NOT NMOE_CUDNN_LIBRARY)
  message(FATAL_ERROR "cuDNN not found: cudnn.h is ${NMOE_CUDNN_INCLUDE}, libcudnn.so.9 is ${NMOE_CUDNN_LIBRARY}. Install "
    "cuDNN ${NMOE_CUDNN_MINIMUM} or newer for CUDA 13, or set CUDNN_HOME to the folder above its include/ and lib/.")
endif()
file(STRINGS ${NMOE_CUDNN_INCLUDE}/cudnn_version.h cudnn_lines REGEX "^#define CUDNN_(MAJOR|MINOR) ")
list(TRANSFORM cudnn_lines REPLACE "^#define CUDNN_[A-Z]+ " "")
list(JOIN cudnn_lines "." NMOE_CUDNN_VERSION)
if(NMOE_CUDNN_VERSION VERSION_LESS NMOE_CUDNN_MINIMUM)
  message(FATAL_ERROR "cuDNN ${NMOE_CUDNN_VERSION} found in ${NMOE_CUDNN_INCLUDE}; nmoe needs ${NMOE_CUDNN_MINIMUM} or "
    "newer: install it, or set CUDNN_HOME to the folder above its include/ and lib/.")
endif()

# Nor is NCCL, which sums between the GPUs of several processes; found and loaded alike (ops/cuda/vendor/nccl.h).
set(NMOE_NCCL_MINIMUM 2.28)
find_path(NMOE_NCCL_INCLUDE nccl.h HINTS ENV NCCL_HOME ${CUDAToolkit_INCLUDE_DIRS} PATH_SUFFIXES include)
find_library(NMOE_NCCL_LIBRARY NAMES libnccl.so.2 HINTS ENV NCCL_HOME ${CUDAToolkit_LIBRARY_DIR} PATH_SUFFIXES lib lib64)
if(NOT NMOE_NCCL_INCLUDE OR NOT NMOE_NCCL_LIBRARY)
  message(FATAL_ERROR "NCCL not found: nccl.h is ${NMOE_NCCL_INCLUDE}, libnccl.so.2 is ${NMOE_NCCL_LIBRARY}. Install NCCL "
    "${NMOE_NCCL_MINIMUM} or newer for CUDA 13, or set NCCL_HOME to the folder above its include/ and lib/.")
endif()
set(NMOE_CUDA ON)

# A way out where `n selftest` finds that the products of our own for Blackwell, which no test has run, are wrong there.
option(NMOE_PLAIN_PRODUCTS "Blackwell: grouped products by the kernels for any GPU, and none in mxfp8 and nvfp4" OFF)
if(NMOE_PLAIN_PRODUCTS)
  add_compile_definitions(NMOE_PLAIN_PRODUCTS)
endif()
