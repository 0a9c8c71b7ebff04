#include "parallel/launch.h"

#include <gtest/gtest.h>

#include <map>

#include "support/errors.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

using test::contains;
using test::error_of;
using Variables = std::map<std::string, std::string>;

Launch read(const Variables& variables) {
  return read_launch([&](const char* name) {
    const auto found = variables.find(name);
    return found == variables.end() ? nullptr : found->second.c_str();
  });
}
Error fault(const Variables& variables) {
  return error_of([&] { read(variables); });
}

// `more` replaces what is there; "" takes it away.
Variables with(Variables variables, const Variables& more) {
  for (const auto& [name, value] : more) variables[name] = value;
  return variables;
}

const Variables kTorch = {
    {"WORLD_SIZE", "4"}, {"RANK", "2"}, {"LOCAL_RANK", "1"}, {"MASTER_ADDR", "node0"}, {"MASTER_PORT", "29500"}};
const Variables kSlurm = {{"SLURM_NTASKS", "4"},
                          {"SLURM_PROCID", "3"},
                          {"SLURM_LOCALID", "1"},
                          {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.7"},
                          {"MASTER_PORT", "29500"}};

TEST(Launch, WithoutALauncherAProcessIsAlone) {
  EXPECT_TRUE(read({}).is_alone());
  EXPECT_TRUE(read({{"WORLD_SIZE", ""}, {"RANK", ""}}).is_alone());
  EXPECT_TRUE(read({{"WORLD_SIZE", "1"}, {"RANK", "0"}}).is_alone());
  EXPECT_TRUE(read({{"SLURM_NTASKS", "4"}}).is_alone());  // a shell of salloc
  EXPECT_EQ(read({}).process, 0);
}

TEST(Launch, IsReadFromTheEnvironment) {
  const Launch launch = read(kTorch);
  EXPECT_EQ(launch.num_processes, 4);
  EXPECT_EQ(launch.process, 2);
  EXPECT_EQ(launch.local_process, 1);
  EXPECT_EQ(launch.address, "node0");
  EXPECT_EQ(launch.port, 29500);
  EXPECT_EQ(launch.secret, "");
}

TEST(Launch, IsReadFromSlurm) {
  const Launch launch = read(kSlurm);
  EXPECT_EQ(launch.num_processes, 4);
  EXPECT_EQ(launch.process, 3);
  EXPECT_EQ(launch.local_process, 1);
  EXPECT_EQ(launch.address, "10.0.0.7");
  EXPECT_EQ(read(with(kSlurm, {{"MASTER_ADDR", "node0"}})).address, "node0");
  // Who sets the others means them.
  EXPECT_EQ(read(with(kSlurm, kTorch)).process, 2);
  EXPECT_TRUE(read(with(kSlurm, {{"WORLD_SIZE", "1"}, {"RANK", "0"}})).is_alone());
}

TEST(Launch, ErrorsNameTheVariable) {
  for (const char* name : {"WORLD_SIZE", "RANK", "MASTER_ADDR", "MASTER_PORT"}) {
    const Error error = fault(with(kTorch, {{name, ""}}));
    EXPECT_EQ(error.kind(), ErrorKind::kUsage);
    EXPECT_EQ(std::string(error.what()), fmt::format("the environment variable {} is not set", name));
  }
  for (const char* name : {"WORLD_SIZE", "RANK", "LOCAL_RANK", "MASTER_PORT"}) {
    for (const char* value : {"-1", "two", "4x", "70000", " 1"}) {
      EXPECT_TRUE(contains(fault(with(kTorch, {{name, value}})).what(),
                           fmt::format("the environment variable {} is \"{}\"", name, value)));
    }
  }
  EXPECT_TRUE(contains(fault(with(kTorch, {{"RANK", "4"}})).what(), "RANK is \"4\", no whole number from 0 to 3"));
  EXPECT_TRUE(contains(fault(with(kSlurm, {{"SLURM_PROCID", "4"}})).what(), "SLURM_PROCID"));
  EXPECT_TRUE(contains(fault(with(kTorch, {{"MASTER_ADDR", ""}, {"SLURM_LAUNCH_NODE_IPADDR", "10.0.0.7"}})).what(),
                       "MASTER_ADDR"));
}

class LaunchSecretTest : public test::TempDirTest {};

TEST_F(LaunchSecretTest, IsTextOrInAFile) {
  EXPECT_EQ(read(with(kTorch, {{"NMOE_SECRET", "sixteen bytes or more"}})).secret, "sixteen bytes or more");
  const std::string path = (dir_ / "secret").string();
  write_file_atomically(path, "sixteen bytes of a file\n");
  EXPECT_EQ(read(with(kTorch, {{"NMOE_SECRET_FILE", path}})).secret, "sixteen bytes of a file");

  EXPECT_TRUE(contains(fault(with(kTorch, {{"NMOE_SECRET", "short"}})).what(), "NMOE_SECRET has 5 bytes"));
  write_file_atomically(path, "\n");
  EXPECT_TRUE(contains(fault(with(kTorch, {{"NMOE_SECRET_FILE", path}})).what(), "has 0 bytes"));
  EXPECT_TRUE(contains(fault(with(kTorch, {{"NMOE_SECRET_FILE", path + "2"}})).what(), "secret2) cannot be read"));
  EXPECT_TRUE(contains(fault(with(kTorch, {{"NMOE_SECRET_FILE", path}, {"NMOE_SECRET", "x"}})).what(), "both"));
}

TEST(Launch, RanksAreSharedEqually) {
  Launch launch = read(kTorch);
  EXPECT_EQ(ranks_of_process(launch, 8), 2);
  EXPECT_EQ(ranks_of_process({}, 3), 3);
  EXPECT_TRUE(contains(error_of([&] { ranks_of_process(launch, 6); }).what(), "parallel.ranks = 6"));
  EXPECT_TRUE(contains(error_of([&] { ranks_of_process(launch, 1); }).remedy(), "multiple of 4"));
}

TEST(DevicesOfProcess, AreItsShareOfWhatItSees) {
  const auto devices = [](int64_t local_process, int64_t ranks, const char* visible) {
    return devices_of_process({.num_processes = 4, .local_process = local_process}, ranks,
                              [&](const char*) { return visible; });
  };
  EXPECT_EQ(devices(0, 2, nullptr), "0,1");
  EXPECT_EQ(devices(1, 2, nullptr), "2,3");
  EXPECT_EQ(devices(1, 1, "4,5,7"), "5");
  EXPECT_EQ(devices(1, 2, "4,5,GPU-8932f937,7"), "GPU-8932f937,7");
  EXPECT_EQ(devices(3, 1, "2"), "2");  // each process was given its own
  EXPECT_EQ(devices(1, 2, "0,1"), "0,1");
}

}  // namespace
}  // namespace nmoe
