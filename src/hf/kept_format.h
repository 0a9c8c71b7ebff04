// An export in the quantised format that its model was imported from: FP8 in blocks of kHfFp8Block x kHfFp8Block, or
// MXFP4 (hf/weights.h).
//
// A checkpoint holds what quantised weights mean, and carries their scales. Where a weight still is what it was, the
// codes follow from the two: a code's meaning is code * scale rounded to BF16, E4M3's values are at least a 16th apart,
// relative, and BF16's rounding moves none by more than a 512th. So codes come back bit for bit, without being kept.
// MXFP4's meanings are exact.
#pragma once

#include <cstdint>
#include <vector>

#include "base/thread_pool.h"
#include "checkpoint/safetensors.h"
#include "hf/hf_model.h"

namespace nmoe {

struct KeptFormat {
  std::vector<TensorSource> tensors;  // in the order given, each quantised one followed by its scales
  int64_t num_unchanged = 0;          // quantised tensors that are the source's bytes
  int64_t num_changed = 0;            // and those that are not
};

// `tensors` with those quantised that have scales, NAME_scale_inv or NAME_scales, in `carried`. A tensor all of whose
// elements are meanings of codes under its scales becomes these codes and scales; any other is quantised anew. Of FP8 a
// block's scale is its largest magnitude / 448 in the dtype of the source's scales, or the least power of two of E8M0
// and that dtype that is not below it, if `kind` says that scales are such; its codes are value / scale, to nearest,
// ties to even. (Codes of a block whose scale is 0 mean nothing, and become 0.) MXFP4: kept_matrix.h. Reads all of
// these tensors; sources and `carried` must outlive the result. Error (runtime) when scales are not of a tensor's
// shape.
KeptFormat in_kept_format(std::vector<TensorSource> tensors, const SafetensorsFile& carried, HfScales kind,
                          ThreadPool& pool);

}  // namespace nmoe
