#include "train/proof/device_proof.h"

#include <fmt/format.h>

#include <cstdlib>

#include "base/error.h"
#include "base/say.h"
#include "ops/checked/checked_device.h"
#include "train/proof/self_test.h"

namespace nmoe {
namespace {

fs::path cache_folder() {
  const auto value = [](const char* name) {
    const char* text = std::getenv(name);
    return std::string(text == nullptr ? "" : text);
  };
  if (const std::string cache = value("XDG_CACHE_HOME"); !cache.empty()) return fs::path(cache) / "nmoe";
  const std::string home = value("HOME");
  return home.empty() ? fs::path() : fs::path(home) / ".cache/nmoe";
}

std::map<std::string, int64_t> self_test(const DeviceOptions& options) {
  return run_self_test(options, [](const std::string& what) { say("self test: {}\n", what); });
}

}  // namespace

std::string proof_of(const Device& device, std::string_view program) {
  const SoftwareVersions software = device.software();
  return fmt::format("{}; driver {}; {}; {}", device.description(), software.driver, software.toolkit, program);
}

Proofs::Proofs() {
  const fs::path folder = cache_folder();
  if (!folder.empty()) file_ = folder / "devices";
}

bool Proofs::has(const std::string& proof) const {
  try {
    return !file_.empty() && fs::exists(file_) &&
           ("\n" + read_file(file_)).find("\n" + proof + "\n") != std::string::npos;
  } catch (const std::exception&) {
    return false;
  }
}

void Proofs::add(const std::string& proof) const {
  if (file_.empty() || has(proof)) return;
  try {
    make_directories(file_.parent_path());
    const std::string before = fs::exists(file_) ? read_file(file_) : "";
    write_file_atomically(file_, before + proof + "\n");
  } catch (const std::exception& error) {
    say("warning: that this device passed is not remembered: {}\n", error.what());
  }
}

std::map<std::string, int64_t> prove_device(const DeviceOptions& options, std::string_view program,
                                            const Proofs& proofs, const SelfTestFunction& test) {
  const auto device = make_device(options);
  try {
    auto counts = test ? test(options) : self_test(options);
    proofs.add(proof_of(*device, program));
    return counts;
  } catch (const checked::MismatchError& error) {
    throw runtime_error(
        fmt::format("{} computes {} otherwise than the CPU: {}", device->description(), error.mismatch().operation,
                    error.mismatch().what),
        "do not train on it; report this line with the versions that n --version prints. On Blackwell, a "
        "program built with -DNMOE_PLAIN_PRODUCTS=ON has fewer kernels that can be wrong "
        "(docs/troubleshooting.md)");
  }
}

void require_proof(const DeviceOptions& options, std::string_view program) {
  if (is_tested_device_kind(options.kind)) return;
  const Proofs proofs;
  if (proofs.has(proof_of(*make_device(options), program))) return;
  say("this kind of device was never tested: each of its operations is held against the CPU's first\n");
  prove_device(options, program, proofs);
}

}  // namespace nmoe
