// The program `n`: one command, and what comes of its failures. Compiled for any x86-64, so that it can say what the
// rest needs.
#include <fcntl.h>
#include <fmt/format.h>

#include <cerrno>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <exception>
#include <iostream>
#include <new>
#include <string>
#include <system_error>
#include <utility>

#include "base/error.h"
#include "base/failure.h"
#include "base/say.h"
#include "base/version.h"
#include "cli/command_line.h"

namespace nmoe::cli {
namespace {

// "" or what this processor lacks of x86-64-v3, the level everything but this file is compiled for.
std::string missing_cpu_feature() {
  const std::pair<const char*, bool> needed[] = {{"AVX2", __builtin_cpu_supports("avx2") != 0},
                                                 {"FMA", __builtin_cpu_supports("fma") != 0},
                                                 {"BMI", __builtin_cpu_supports("bmi") != 0},
                                                 {"BMI2", __builtin_cpu_supports("bmi2") != 0},
                                                 {"POPCNT", __builtin_cpu_supports("popcnt") != 0}};
  for (const auto& [name, present] : needed) {
    if (!present) return name;
  }
  return "";
}

constexpr const char* kOutputRemedy = "see that its disk is not full and its reader still there";

// What a command printed is told to be lost rather than to have come.
void flush_output() {
  std::cout.flush();
  if (std::fflush(stdout) == 0 && std::ferror(stdout) == 0 && std::cout.good()) return;
  throw runtime_error(fmt::format("standard output cannot be written: {}", std::generic_category().message(errno)),
                      kOutputRemedy);
}

}  // namespace
}  // namespace nmoe::cli

namespace {

// The three standard descriptors are open from here on: a file that got the number of one would be written over with
// messages. What is written to one that was closed fails.
void open_standard_descriptors() {
  for (int fd = 0; fd <= 2; ++fd) {
    if (::fcntl(fd, F_GETFD) >= 0) continue;
    // Opened the wrong way round; it gets the lowest number that is free.
    if (::open("/dev/null", fd == 0 ? O_WRONLY : O_RDONLY) != fd) std::_Exit(1);
  }
}

int report(int exit_code, const char* what, const std::string& remedy) {
  try {
    nmoe::say("error: {}\nremedy: {}\n", what, remedy);
  } catch (const std::bad_alloc&) {  // not even for the message
    nmoe::write_to_standard_error(
        "error: memory is used up\nremedy: end other programs, or raise the limit of memory\n");
  }
  return exit_code;
}

}  // namespace

int main(int argc, char** argv) {
  open_standard_descriptors();
  std::signal(SIGXFSZ, SIG_IGN);  // a write beyond a limit on the size of files fails instead
  const std::string missing = nmoe::cli::missing_cpu_feature();
  if (!missing.empty()) {
    std::fprintf(stderr,
                 "error: this processor has no %s\nremedy: run nmoe on an x86-64-v3 processor (2013 or later)\n",
                 missing.c_str());
    return 1;
  }
  try {
    nmoe::cli::CommandLine command_line;
    command_line.parse(argc, argv)();
    nmoe::cli::flush_output();
    return 0;
  } catch (const nmoe::Error& error) {
    return report(error.exit_code(), error.what(), error.remedy());
  } catch (const nmoe::CheckFailure& failure) {
    nmoe::say("internal error: {}\nremedy: this is a bug in nmoe {} ({}); please report it\n", failure.what(),
              nmoe::version(), nmoe::commit());
    return 1;
  } catch (const std::exception& exception) {
    if (std::ferror(stdout) != 0) {
      return report(1, fmt::format("standard output cannot be written: {}", exception.what()).c_str(),
                    nmoe::cli::kOutputRemedy);
    }
    const nmoe::Error error = nmoe::as_error(exception);
    return report(1, error.what(), error.remedy());
  }
}
