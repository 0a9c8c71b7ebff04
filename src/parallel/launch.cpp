#include "parallel/launch.h"

#include <fmt/format.h>

#include <charconv>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <optional>
#include <sstream>
#include <string_view>
#include <vector>

#include "base/error.h"

namespace nmoe {
namespace {

constexpr size_t kMinSecretBytes = 16;
constexpr int64_t kMaxProcesses = 4096;

class Variables {
 public:
  explicit Variables(const Environment& environment) : environment_(environment) {}

  std::string text(const char* name) const {
    const char* value = environment_(name);
    return value == nullptr ? "" : value;
  }
  bool has(const char* name) const { return !text(name).empty(); }

  // `hint` is the remedy when it is not set.
  int64_t number(const char* name, int64_t min, int64_t max, const std::string& hint) const {
    const std::string value = text(name);
    if (value.empty()) throw usage_error(fmt::format("the environment variable {} is not set", name), hint);
    int64_t number = 0;
    const auto [end, error] = std::from_chars(value.data(), value.data() + value.size(), number);
    if (error != std::errc() || end != value.data() + value.size() || number < min || number > max) {
      throw usage_error(
          fmt::format("the environment variable {} is \"{}\", no whole number from {} to {}", name, value, min, max),
          hint);
    }
    return number;
  }

 private:
  const Environment& environment_;
};

// What a launcher calls things.
struct Dialect {
  const char* num_processes;
  const char* process;
  const char* local_process;
};
constexpr Dialect kPlain = {"WORLD_SIZE", "RANK", "LOCAL_RANK"};
constexpr Dialect kSlurm = {"SLURM_NTASKS", "SLURM_PROCID", "SLURM_LOCALID"};

// The one in which this process was told what it is, or nothing.
std::optional<Dialect> dialect_of(const Variables& variables) {
  if (variables.has(kPlain.num_processes) || variables.has(kPlain.process)) return kPlain;
  // A shell that SLURM granted processes, but which srun did not start, has no number.
  if (variables.has(kSlurm.num_processes) && variables.has(kSlurm.process)) return kSlurm;
  return std::nullopt;
}

std::string read_secret(const Variables& variables) {
  std::string secret = variables.text("NMOE_SECRET"), place = "NMOE_SECRET";
  const std::string path = variables.text("NMOE_SECRET_FILE");
  if (!secret.empty() && !path.empty()) {
    throw usage_error("both NMOE_SECRET and NMOE_SECRET_FILE are set", "unset one of them");
  }
  if (!path.empty()) {
    place = fmt::format("NMOE_SECRET_FILE ({})", path);
    std::ifstream file(path, std::ios::binary);
    secret.assign(std::istreambuf_iterator<char>(file), {});
    if (!file) throw usage_error(fmt::format("{} cannot be read", place), "check the path and its permissions");
    while (secret.ends_with('\n') || secret.ends_with('\r')) secret.pop_back();
  }
  if (secret.empty() && path.empty()) return secret;
  if (secret.size() < kMinSecretBytes) {
    throw usage_error(fmt::format("the secret of {} has {} bytes, too few to be one", place, secret.size()),
                      fmt::format("take at least {}, say from: openssl rand -hex 32", kMinSecretBytes));
  }
  return secret;
}

}  // namespace

const char* process_environment(const char* variable) { return std::getenv(variable); }

Launch read_launch(const Environment& environment) {
  const Variables variables(environment);
  const std::optional<Dialect> dialect = dialect_of(variables);
  if (!dialect) return {};
  const std::string hint =
      fmt::format("a launcher sets {} and {} in every process; for a process that is alone, unset both",
                  dialect->num_processes, dialect->process);
  Launch launch;
  launch.num_processes = variables.number(dialect->num_processes, 1, kMaxProcesses, hint);
  launch.process = variables.number(dialect->process, 0, launch.num_processes - 1, hint);
  if (variables.has(dialect->local_process)) {
    launch.local_process = variables.number(dialect->local_process, 0, launch.num_processes - 1, hint);
  }
  if (launch.is_alone()) return launch;

  launch.address = variables.text("MASTER_ADDR");
  if (launch.address.empty() && dialect->process == kSlurm.process) {
    launch.address = variables.text("SLURM_LAUNCH_NODE_IPADDR");
  }
  if (launch.address.empty()) {
    throw usage_error("the environment variable MASTER_ADDR is not set",
                      "set it to the address of the host of process 0, the same in every process");
  }
  launch.port = static_cast<int>(variables.number(
      "MASTER_PORT", 1, 65535, "set it to a free port of the host of process 0, the same in every process"));
  launch.secret = read_secret(variables);
  return launch;
}

std::string devices_of_process(const Launch& launch, int64_t ranks, const Environment& environment) {
  const Variables variables(environment);
  const std::string visible = variables.text("CUDA_VISIBLE_DEVICES");
  const int64_t begin = launch.local_process * ranks, end = begin + ranks;
  std::vector<std::string> devices;
  if (visible.empty()) {
    for (int64_t device = 0; device < end; ++device) devices.push_back(fmt::format("{}", device));
  } else {
    std::istringstream list(visible);
    for (std::string device; std::getline(list, device, ',');) devices.push_back(device);
  }
  if (static_cast<int64_t>(devices.size()) < end) return visible;
  return fmt::format("{}", fmt::join(devices.begin() + begin, devices.begin() + end, ","));
}

int64_t ranks_of_process(const Launch& launch, int64_t ranks) {
  if (ranks % launch.num_processes != 0) {
    throw usage_error(
        fmt::format("parallel.ranks = {} cannot be shared equally by {} processes", ranks, launch.num_processes),
        fmt::format("parallel.ranks counts the ranks of all processes: set it to a multiple of {}, or "
                    "start another number of processes (one alone in a SLURM job: srun --ntasks 1)",
                    launch.num_processes));
  }
  return ranks / launch.num_processes;
}

}  // namespace nmoe
