// A quantised tensor of an export (hf/kept_format.h) in its format. Private to the export.
#pragma once

#include <array>
#include <memory>

#include "checkpoint/safetensors.h"

namespace nmoe {

class KeptMatrix {
 public:
  virtual ~KeptMatrix() = default;
  // Whether all values are meanings of codes under the scales that are there.
  virtual bool is_unchanged() const = 0;
  // Scales of the values in place of those.
  virtual void make_scales() = 0;
  // Codes and scales, which share `self`, this matrix.
  virtual std::array<TensorSource, 2> sources(const std::shared_ptr<const KeptMatrix>& self) const = 0;
};

// In MXFP4 (hf/weights.h): `values` [E, in, out] with `scales`. A block's new scale has the exponent of its largest
// magnitude, less E2M1's largest one; codes are to nearest, ties to even. Error (runtime) where shapes do not fit.
std::shared_ptr<KeptMatrix> kept_mxfp4(TensorSource values, const SafetensorsFile& file,
                                       const SafetensorsFile::Entry& scales);

}  // namespace nmoe
