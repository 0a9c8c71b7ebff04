// A coordinate check: whether activations, and what a few steps change in them, keep their size in models of other
// widths and depths, as rates do that are to carry over (arXiv 2203.03466, appendix D.1).
#pragma once

#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "config/config.h"

namespace nmoe {

struct CoordinateOptions {
  std::vector<double> widths = {1, 2, 4};  // multiples of the configuration's; depths are 1 there
  std::vector<double> depths = {1, 2, 4};  // multiples of its layers; widths are 1 there
  int64_t steps = 5;                       // before the second look
  int64_t seqs = 4;                        // of each step's batch
};

// Root mean squares over the elements of what is looked at, all of its layers together.
struct Coordinate {
  std::string what;     // "router logits"
  double size = 0.0;    // behind the steps
  double change = 0.0;  // of what was there before them, for the same tokens
};
struct CoordinateModel {
  double width = 1.0, depth = 1.0;
  int64_t dim = 0, layers = 0;
  double loss = 0.0;  // of the last step, in nats
  std::vector<Coordinate> coordinates;
};

// Exponents p of sizes that go as width^p and depth^p, by least squares of logarithms: 0 where nothing changes. Of
// fewer than two models, or where something is 0: not a number.
struct CoordinateSlopes {
  std::string what;
  double size_by_width, change_by_width, size_by_depth, change_by_depth;
};
std::vector<CoordinateSlopes> coordinate_slopes(const std::vector<CoordinateModel>& models);

// `config` with so many times the widths (dim, heads, hidden widths, latents; heads keep their size, and experts their
// number) and layers, dense ones among them. With a rule of [model.scaling], its base has the sizes that it had, or
// else those of `config`. Errors (usage): sizes that are not whole then; layers by pattern.
Config resized(const Config& config, double width, double depth);

// Trains each model from new weights at the peak rates, on the same sequences of data.path or data.mixture, on the CPU.
// `tell` is called with a line before each. Errors: (usage) what makes such a run impossible, run.device that is not
// "cpu"; (runtime) a loss that is not finite.
std::vector<CoordinateModel> check_coordinates(const Config& config, const CoordinateOptions& options,
                                               const std::function<void(std::string_view)>& tell = {});

}  // namespace nmoe
