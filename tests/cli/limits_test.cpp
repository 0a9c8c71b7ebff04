// Where the system gives no more, a user is told of what, and what to do.
#include "cli/cli_test.h"

namespace nmoe {
namespace {

class LimitsTest : public CliTest {
 protected:
  // `n` with these arguments behind a command of the shell that limits it.
  Outcome limited(const std::string& limit, const std::string& arguments) const {
    return test::Program(dir_,
                         {"bash", "-c", fmt::format("{} && exec timeout 60 {} {}", limit, NMOE_PROGRAM, arguments)})
        .wait();
  }
};

TEST_F(LimitsTest, MemoryIsNamed) {
  prepare();
  write("empty", "");
  fs::resize_file(dir_ / "empty", 3'000'000'000);  // sparse
  const Outcome encode = limited("ulimit -v 1500000", "tokenizer encode data/tokenizer.json < empty");
  expect_error(encode, 1, "emory", "ulimit -v");
  EXPECT_FALSE(contains(encode.err, "report")) << encode.err;
  EXPECT_FALSE(contains(encode.err, "disk")) << encode.err;
  const Outcome outcome =
      limited("ulimit -v 1500000", "train tiny.toml --set model.vocab_size=200000 --set model.dim=512");
  expect_error(outcome, 2, "this machine's free memory is ", "make the model smaller");
}

TEST_F(LimitsTest, TooFewFilesEndAServer) {
  prepare();
  output(train({"train.steps=2"}));
  for (const int files : {10, 12, 20, 31}) {
    const Outcome outcome = limited(fmt::format("ulimit -n {}", files), "viz --dir runs --port 0");
    expect_error(outcome, 1, fmt::format("needs 32 open files, and may have {}", files), "ulimit -n");
  }
  for (const int files : {5, 6, 7, 8, 9}) {
    const Outcome outcome = limited(fmt::format("ulimit -n {}", files), "viz --dir runs --port 0");
    expect_error(outcome, 1, "", "ulimit -n");
  }
}

}  // namespace
}  // namespace nmoe
