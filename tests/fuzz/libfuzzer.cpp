// The targets for libFuzzer, which looks for inputs that reach new code: scripts/fuzz.sh.
//
// NMOE_FUZZ_TARGET names the one to run.
#include <cstdint>
#include <cstdio>
#include <cstdlib>

#include "fuzz/targets.h"

namespace {
const nmoe::fuzz::Target* chosen = nullptr;
}  // namespace

extern "C" int LLVMFuzzerInitialize(int*, char***) {
  const char* name = std::getenv("NMOE_FUZZ_TARGET");
  chosen = name == nullptr ? nullptr : nmoe::fuzz::find_target(name);
  if (chosen != nullptr) return 0;
  std::fputs("NMOE_FUZZ_TARGET is to be one of:", stderr);
  for (const nmoe::fuzz::Target& target : nmoe::fuzz::targets()) std::fprintf(stderr, " %s", target.name.data());
  std::fputs("\n", stderr);
  std::exit(2);
}

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  chosen->run({reinterpret_cast<const char*>(data), size});
  return 0;
}
