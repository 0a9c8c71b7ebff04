// Shared memory: as PTX names it, as matrices of BF16, and what is copied to it while threads go on.
#pragma once

#include <cuda_runtime.h>

#include <cstdint>

namespace nmoe::cuda {

__device__ inline uint32_t shared_address(const void* pointer) {
  return static_cast<uint32_t>(__cvta_generic_to_shared(pointer));
}

// Four 8 x 8 matrices of bf16 from shared memory; lane l names row l % 8 of matrix l / 8, and gets in r[m] the values
// (l / 4, 2 (l % 4)) and the one behind it of matrix m.
template <bool kTranspose>
__device__ void load_matrices(uint32_t row, unsigned (&r)[4]) {
  if constexpr (kTranspose) {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.trans.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
  } else {
    asm volatile("ldmatrix.sync.aligned.m8n8.x4.shared.b16 {%0, %1, %2, %3}, [%4];\n"
                 : "=r"(r[0]), "=r"(r[1]), "=r"(r[2]), "=r"(r[3])
                 : "r"(row)
                 : "memory");
  }
}
template <bool kTranspose>
__device__ void load_matrices(const void* row, unsigned (&r)[4]) {
  load_matrices<kTranspose>(shared_address(row), r);
}

// --- asynchronous copies, in groups that the issuing thread commits and waits for
// 16 bytes to shared memory, from an address aligned to that; zeros unless `exists`, and then nothing is read.
__device__ inline void copy_async16(uint32_t target, const void* source, bool exists) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16, %2;\n" ::"r"(target), "l"(source), "r"(exists ? 16 : 0)
               : "memory");
}
__device__ inline void copy_async16(void* target, const void* source, bool exists) {
  copy_async16(shared_address(target), source, exists);
}
// The same of 4 bytes, and of 8.
__device__ inline void copy_async4(void* target, const void* source, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 4, %2;\n" ::"r"(shared_address(target)), "l"(source),
               "r"(exists ? 4 : 0)
               : "memory");
}
__device__ inline void copy_async8(void* target, const void* source, bool exists) {
  asm volatile("cp.async.ca.shared.global [%0], [%1], 8, %2;\n" ::"r"(shared_address(target)), "l"(source),
               "r"(exists ? 8 : 0)
               : "memory");
}
// As copy_async16(), and L2 fetches the 256 bytes around them: what is wanted next lies beside.
__device__ inline void copy_async16_ahead(uint32_t target, const void* source, bool exists) {
  asm volatile("cp.async.cg.shared.global.L2::256B [%0], [%1], 16, %2;\n" ::"r"(target), "l"(source),
               "r"(exists ? 16 : 0)
               : "memory");
}
__device__ inline void copy_async16_ahead(void* target, const void* source, bool exists) {
  copy_async16_ahead(shared_address(target), source, exists);
}
__device__ inline void commit_copies() { asm volatile("cp.async.commit_group;\n" ::: "memory"); }
// Until at most kPending of the groups committed last are under way.
template <int kPending>
__device__ void wait_copies() {
  asm volatile("cp.async.wait_group %0;\n" ::"n"(kPending) : "memory");
}

}  // namespace nmoe::cuda
