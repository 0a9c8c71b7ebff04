// Which devices have passed the self-test (self_test.h) for this user on this machine, and when one has to.
#pragma once

#include <functional>
#include <map>
#include <string>
#include <string_view>

#include "base/files.h"
#include "ops/factory.h"

namespace nmoe {

// What a proof is for: the device and its compute dtype, libraries, driver, toolkit, and the program.
std::string proof_of(const Device& device, std::string_view program);

// A file with one proof per line. If it cannot be read or written, nothing is remembered, and the test is repeated.
class Proofs {
 public:
  // $XDG_CACHE_HOME/nmoe/devices, else ~/.cache/nmoe/devices; nothing is remembered if there is neither.
  Proofs();
  explicit Proofs(fs::path file) : file_(std::move(file)) {}

  bool has(const std::string& proof) const;
  void add(const std::string& proof) const;

 private:
  fs::path file_;
};

// Runs the self-test and remembers success. Returns how often each operation was checked. Error (runtime) with the name
// of an operation that differs from the CPU's. `test`: run_self_test, except in tests of this function.
using SelfTestFunction = std::function<std::map<std::string, int64_t>(const DeviceOptions& options)>;
std::map<std::string, int64_t> prove_device(const DeviceOptions& options, std::string_view program,
                                            const Proofs& proofs = Proofs(), const SelfTestFunction& test = {});

// The same before training on a kind of device that the tests of this project have never run on
// (is_tested_device_kind()), unless it is remembered.
void require_proof(const DeviceOptions& options, std::string_view program);

}  // namespace nmoe
