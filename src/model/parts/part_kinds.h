// Every kind of part, made.
#pragma once

#include <memory>
#include <vector>

#include "model/parts/part.h"
#include "model/spec/part.h"
#include "model/weight_set.h"

namespace nmoe {

class Moe;

// Makes the part, with the weights that describe_part named (model/spec/part_kinds.h). `weights` must outlive it. One
// that routes tokens to experts is added to `routing`, too.
std::unique_ptr<Part> make_part(const LayerPart& part, WeightSet& weights, std::vector<Moe*>& routing);

}  // namespace nmoe
