// What every bench says first: where it ran, and what ran there.
#pragma once

#include <nlohmann/json.hpp>
#include <string>

#include "ops/device.h"

namespace nmoe::cli {

// device, driver, toolkit, version and commit; further figures go behind them.
nlohmann::ordered_json bench_origin(const std::string& device, const SoftwareVersions& software);

// The same in lines, whose names take `width` columns.
void print_bench_origin(const std::string& device, const SoftwareVersions& software, int width);

}  // namespace nmoe::cli
