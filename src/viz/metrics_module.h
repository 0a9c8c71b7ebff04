// What the page knows of metrics, as a module of JavaScript: metrics.js.
#pragma once

#include <string>

namespace nmoe {

// kFirstTags: what the page shows at first. kTimeTags: what a step's time goes to. kPhaseTags: the times of its phases.
// kGpuTag: an expression for the tags of GPUs, of which it takes number and name.
std::string metrics_module();

}  // namespace nmoe
