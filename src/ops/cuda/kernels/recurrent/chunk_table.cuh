// Chunks of sequences' documents, as scans and delta rules go through them.
#pragma once

#include <cuda_runtime.h>

#include <algorithm>
#include <cstdint>

#include "ops/cuda/runtime/context.h"
#include "tensor/tensor.h"

namespace nmoe::cuda {

// A chunk's tokens, and the places of the states at its beginning and behind it; -1: there is none, or nobody wants it.
// Behind a sequence's last chunk is place B * places + its number.
struct alignas(16) Chunk {
  int begin, end, before, after;

  __device__ int size() const { return end - begin; }
};

// Documents as AttentionShape has them: document i is [bounds[i], bounds[i + 1]).
struct Documents {
  const int32_t* bounds;  // null: sequences are documents, whose chunks need no search
  int count, seq_len, num_seqs;
  int chunk, places;
  bool has_initial, wants_final;

  // A chunk of tokens [begin, ...) of a document.
  __device__ Chunk make(int begin, int document_begin, int document_end) const {
    const int seq = begin / seq_len, first = seq * seq_len;
    Chunk made{.begin = begin, .end = min(begin + chunk, document_end), .before = -1, .after = -1};
    if (begin > document_begin || (begin == first && has_initial)) {
      made.before = seq * places + (begin - first) / chunk;
    }
    if (made.end < document_end) {
      made.after = seq * places + (made.end - first) / chunk;
    } else if (wants_final && made.end == first + seq_len) {
      made.after = num_seqs * places + seq;
    }
    return made;
  }
  // Of sequences that are documents.
  __device__ Chunk make_whole(int number) const {
    const int first = number / places * seq_len;
    return make(first + number % places * chunk, first, first + seq_len);
  }
};

// `Inputs`: an operation's, with num_seqs, seq_len, cu_seqlens and initial_state. `places` are a sequence's.
template <class Inputs>
Documents documents_of(const Inputs& in, int64_t chunk, int64_t places, bool wants_final) {
  const bool has_documents = in.cu_seqlens.defined();
  return {.bounds = has_documents ? in.cu_seqlens.template data<int32_t>() : nullptr,
          .count = static_cast<int>(has_documents ? in.cu_seqlens.dim(0) - 1 : in.num_seqs),
          .seq_len = static_cast<int>(in.seq_len),
          .num_seqs = static_cast<int>(in.num_seqs),
          .chunk = static_cast<int>(chunk),
          .places = static_cast<int>(places),
          .has_initial = in.initial_state.defined(),
          .wants_final = wants_final};
}

// Fills in the tables: chunks in their order, each sequence's first one, and in firsts[num_seqs] their number. For
// documents with bounds.
void fill_chunks(Context& ctx, const Documents& documents, Chunk* chunks, int* firsts);

// Gradients of parameters that heads have one each of; null: no gradient.
struct HeadGradients {
  float *first, *second, *third;
};
// Adds to gradients [H] what chunks have of each: parts [gradients, H, at least *count] F32. A head's are added by 32
// lanes, each those of every 32nd chunk, ascending, and then lanes 16, 8, 4, 2 and 1 apart.
void add_chunk_parts(Context& ctx, const Tensor& parts, const int* count, const HeadGradients& gradients);

}  // namespace nmoe::cuda
