// TensorBoard's event files: records of TFRecord (length, masked CRC-32C, bytes, masked CRC-32C), each a protobuf
// message tensorflow.Event (tensorflow/core/util/event.proto), here with a scalar summary (framework/summary.proto).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace nmoe {

// With what a file begins: version "brain.Event:2".
std::string tensorboard_head(double wall_time_s);
std::string tensorboard_scalar(std::string_view tag, int64_t step, double value, double wall_time_s);

}  // namespace nmoe
