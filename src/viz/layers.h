// What routers did in a step, layer by layer: a heatmap's numbers.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "track/metrics_reader.h"

namespace nmoe {

// "router/layer_03/load" of every layer 3 that has recorded such an array, by layer; `of` is "load", say.
std::vector<std::string> layer_tags(const MetricsReader& metrics, const std::string& of);

// Of the `at`-th step recorded (counted from 0, the last one if it is beyond), from loaded tags. Little-endian:
//   u32 format = 1    u32 layers    u32 columns    u32 steps    i64 step
//   u32 layer[layers]    f32 value[layers][columns]
// `columns` is of the layer with most; others have NaN there, and where the step has no row.
std::string encode_layers(const MetricsReader& metrics, const std::vector<std::string>& tags, int64_t at);

}  // namespace nmoe
