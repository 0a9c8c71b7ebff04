#include "base/files.h"

#include <gtest/gtest.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstring>
#include <fstream>
#include <functional>
#include <thread>
#include <vector>

#include "base/bounded_file.h"
#include "base/error.h"
#include "support/temp_dir.h"

namespace nmoe {
namespace {

class FilesTest : public test::TempDirTest {
 protected:
  size_t num_entries() const { return static_cast<size_t>(std::distance(fs::directory_iterator(dir_), {})); }
};

// The Error that `action` throws; its text must name `place` and it must have a remedy.
void expect_error(const std::function<void()>& action, const std::string& place, const std::string& reason) {
  try {
    action();
    ADD_FAILURE() << "no error for " << place;
  } catch (const Error& error) {
    EXPECT_EQ(error.kind(), ErrorKind::kRuntime);
    EXPECT_NE(std::string(error.what()).find(place), std::string::npos) << error.what();
    EXPECT_NE(std::string(error.what()).find(reason), std::string::npos) << error.what();
    EXPECT_FALSE(error.remedy().empty());
  }
}

constexpr uid_t kNobody = 65534;

// What `body` returns in a child process, where it may change limits and identity.
int run_in_child(const std::function<int()>& body) {
  const pid_t child = ::fork();
  if (child == 0) ::_exit(body());
  int status = 0;
  ::waitpid(child, &status, 0);
  return WIFEXITED(status) ? WEXITSTATUS(status) : -1;
}

// 0 when `action` throws an Error that gives `reason`, 1 without an error, 2 for another reason.
int exit_code_of_error(const std::function<void()>& action, const std::string& reason) {
  try {
    action();
  } catch (const Error& error) {
    return std::string(error.what()).find(reason) != std::string::npos ? 0 : 2;
  }
  return 1;
}

TEST_F(FilesTest, WholeFileRoundTrip) {
  std::string content(100'001, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i * 7);
  for (const std::string& text : {std::string(), std::string("x"), content}) {
    write_file_atomically(dir_ / "file", text);
    EXPECT_EQ(read_file(dir_ / "file"), text);
    EXPECT_EQ(num_entries(), 1u) << "a temporary file was left";
  }
}

TEST_F(FilesTest, FilesWithoutASizeAreReadToTheEnd) {
  // /proc reports size 0.
  EXPECT_NE(read_file("/proc/self/status").find("VmRSS"), std::string::npos);
}

// Whoever opens a pipe waits for a writer, who may never come.
TEST_F(FilesTest, PipesAndDevicesAreNotRead) {
  const fs::path pipe = dir_ / "config.json";
  ASSERT_EQ(::mkfifo(pipe.c_str(), 0600), 0);
  const auto read = [](const fs::path& path) { return [path] { read_file(path); }; };
  expect_error(read(pipe), "config.json", "pipe");
  expect_error([&] { read_file_up_to(pipe, 100); }, "config.json", "pipe");
  expect_error([&] { MappedFile{pipe}; }, "config.json", "pipe");
  fs::create_symlink("/dev/zero", dir_ / "zero");
  expect_error(read(dir_ / "zero"), "zero", "device");
  EXPECT_EQ(read_file("/dev/null"), "");  // named on purpose
}

TEST_F(FilesTest, NoMoreThanAFileMayHave) {
  write_file_atomically(dir_ / "a", "12345");
  EXPECT_EQ(read_file_up_to(dir_ / "a", 5), "12345");
  expect_error([&] { read_file_up_to(dir_ / "a", 4); }, "'" + (dir_ / "a").string(), "larger than 4 B");
  write_file_atomically(dir_ / "sparse", "");
  fs::resize_file(dir_ / "sparse", uint64_t{8} << 40);
  expect_error([&] { read_file(dir_ / "sparse"); }, "sparse", "larger than 4.00 GiB");
  expect_error([&] { read_file_up_to("/dev/zero", 1000); }, "/dev/zero", "larger than 1000 B");
}

TEST_F(FilesTest, ErrorsNamePathReasonAndRemedy) {
  write_file_atomically(dir_ / "plain", "text");
  const std::string missing = (dir_ / "missing").string();
  expect_error([&] { read_file(missing); }, missing, "No such file");
  expect_error([&] { MappedFile{missing}; }, missing, "No such file");
  expect_error([&] { sync_file(missing); }, missing, "No such file");
  expect_error([&] { read_file(dir_); }, dir_.string(), "Is a directory");
  expect_error([&] { MappedFile{dir_}; }, dir_.string(), "Is a directory");
  expect_error([&] { write_file_atomically(dir_ / "no" / "file", "x"); }, "no", "No such file");
  expect_error([&] { make_directories(dir_ / "plain" / "sub"); }, "plain", "Not a directory");
  expect_error([&] { sync_directory(dir_ / "plain"); }, "plain", "Not a directory");
  expect_error([&] { FileWriter{"/dev/full"}; }, "/dev/full", "not a regular file");
}

TEST_F(FilesTest, PermissionDenied) {
  fs::permissions(dir_, fs::perms::owner_read | fs::perms::owner_exec);
  const int code = run_in_child([&] {
    if (::geteuid() == 0 && ::seteuid(kNobody) != 0) return 3;  // root may write anywhere
    return exit_code_of_error([&] { write_file_atomically(dir_ / "file", "x"); }, "Permission denied");
  });
  fs::permissions(dir_, fs::perms::owner_all);
  EXPECT_EQ(code, 0);
}

TEST_F(FilesTest, AFullDiskKeepsTheOldFileAndLeavesNothing) {
  write_file_atomically(dir_ / "file", "old");
  const std::string large(100'000, 'x');
  const int code = run_in_child([&] {
    ::signal(SIGXFSZ, SIG_IGN);  // then a write past the limit fails with EFBIG
    const rlimit limits{4096, 4096};
    ::setrlimit(RLIMIT_FSIZE, &limits);
    return exit_code_of_error([&] { write_file_atomically(dir_ / "file", large); }, "File too large");
  });
  EXPECT_EQ(code, 0);
  EXPECT_EQ(read_file(dir_ / "file"), "old");
  EXPECT_EQ(num_entries(), 1u);
}

TEST_F(FilesTest, ReadersNeverSeeAMixture) {
  const std::string a(50'000, 'a'), b(50'000, 'b');
  write_file_atomically(dir_ / "file", a);
  std::vector<std::thread> writers;
  for (const std::string* text : {&a, &b}) {
    writers.emplace_back([this, text] {
      for (int i = 0; i < 20; ++i) write_file_atomically(dir_ / "file", *text);
    });
  }
  for (int i = 0; i < 100; ++i) {
    const std::string seen = read_file(dir_ / "file");
    EXPECT_TRUE(seen == a || seen == b);
  }
  for (std::thread& writer : writers) writer.join();
  EXPECT_EQ(num_entries(), 1u);
}

TEST_F(FilesTest, WriterAppendsAndOverwrites) {
  FileWriter writer(dir_ / "file");
  writer.write("........", 8);
  writer.write("tail", 4);
  writer.write_at(2, "head", 4);
  EXPECT_EQ(writer.size(), 12u);
  writer.close();
  EXPECT_EQ(read_file(dir_ / "file"), "..head..tail");
  EXPECT_THROW(writer.write("x", 1), CheckFailure);
}

TEST_F(FilesTest, WriterRefusesToLeaveAHole) {
  FileWriter writer(dir_ / "file");
  writer.write("1234", 4);
  EXPECT_THROW(writer.write_at(3, "56", 2), CheckFailure);
}

TEST_F(FilesTest, AnUnclosedFileIsRemoved) {
  {
    FileWriter writer(dir_ / "file");
    writer.write("half", 4);
    EXPECT_TRUE(fs::exists(dir_ / "file"));
  }
  EXPECT_FALSE(fs::exists(dir_ / "file"));
}

TEST_F(FilesTest, RemovesWhatAKilledWriterLeft) {
  for (const char* name : {".a.json.tmp-123-0", "a.json", ".hidden", "a.tmp-1-1", ".a.tmp-x"}) {
    write_file_atomically(dir_ / name, "x");
  }
  remove_unfinished_files(dir_);
  EXPECT_EQ(num_entries(), 4U);
  EXPECT_FALSE(fs::exists(dir_ / ".a.json.tmp-123-0"));
  expect_error([&] { remove_unfinished_files(dir_ / "none"); }, "none", "No such file");
}

TEST_F(FilesTest, AWriterGoesOnWithAFile) {
  write_file_atomically(dir_ / "file", "0123456789");
  {
    FileWriter writer(dir_ / "file", 4);
    writer.write("abc", 3);
    writer.sync();
  }  // not removed: it was there before
  EXPECT_EQ(read_file(dir_ / "file"), "0123abc");
  expect_error([&] { FileWriter(dir_ / "file", 8); }, "file", "has 7 bytes; 8 had been written");
  expect_error([&] { FileWriter(dir_ / "none", 0); }, "none", "No such file");
  EXPECT_EQ(read_file(dir_ / "file"), "0123abc");
}

TEST_F(FilesTest, ALockIsForOneAtATime) {
  {
    const FileLock lock(dir_ / "lock");
    expect_error([&] { FileLock second(dir_ / "lock"); }, dir_.string(), "another process is at work");
    expect_error([&] { FileLock second(dir_ / "lock"); }, dir_.string(), fmt::format("process {} on ", ::getpid()));
  }
  FileLock again(dir_ / "lock");
}

TEST_F(FilesTest, ATemporaryFolderIsNobodyElses) {
  make_directories(dir_ / "model.tmp");
  make_directories(dir_ / ".model.unfinished-00112233445f");
  make_directories(dir_ / ".other.unfinished-00112233445f");
  make_directories(dir_ / ".model.unfinished-note");
  write_file_atomically(dir_ / ".model.unfinished-00112233445e", "no folder");
  fs::path path;
  {
    const TemporaryFolder first(dir_ / "model");
    const TemporaryFolder second(dir_ / "model");
    write_file_atomically(first.path() / "file", "x");
    EXPECT_NE(first.path(), second.path());
    remove_unfinished_folders(dir_ / "model");
    EXPECT_TRUE(fs::exists(first.path() / "file"));
    EXPECT_FALSE(fs::exists(dir_ / ".model.unfinished-00112233445f"));
    EXPECT_TRUE(fs::exists(dir_ / ".other.unfinished-00112233445f"));
    path = first.path();
  }
  EXPECT_FALSE(fs::exists(path));
  remove_unfinished_folders(dir_ / "");
  EXPECT_EQ(num_entries(), 3U) << "what nobody here made";
}

TEST_F(FilesTest, MapHoldsTheBytesAlsoAfterADrop) {
  std::string content(20'000, '\0');
  for (size_t i = 0; i < content.size(); ++i) content[i] = static_cast<char>(i % 251);
  write_file_atomically(dir_ / "file", content);
  MappedFile source(dir_ / "file");
  const MappedFile map(std::move(source));
  ASSERT_EQ(map.bytes().size(), content.size());
  map.drop(0, 5'000);
  map.drop(5'000, content.size());
  EXPECT_EQ(std::memcmp(map.bytes().data(), content.data(), content.size()), 0);
  EXPECT_THROW(map.drop(0, content.size() + 1), CheckFailure);

  write_file_atomically(dir_ / "empty", "");
  EXPECT_TRUE(MappedFile(dir_ / "empty").bytes().empty());
}

// What lies beyond the page that is left reads as zeros, and that is told.
TEST_F(FilesTest, AFileThatIsCutWhileItIsMapped) {
  write_file_atomically(dir_ / "file", std::string(20'000, 'x'));
  {
    const MappedFile map(dir_ / "file");
    const auto at = [&](size_t place) { return static_cast<char>(map.bytes()[place]); };
    EXPECT_EQ(at(15'000), 'x');
    fs::resize_file(dir_ / "file", 100);
    check_mapped_files();
    expect_error([&] { map.check(); }, (dir_ / "file").string(), "was cut");
    EXPECT_EQ(at(50), 'x');
    EXPECT_EQ(at(15'000), '\0');
    expect_error([] { check_mapped_files(); }, (dir_ / "file").string(), "was cut");
  }
  check_mapped_files();
}

TEST_F(FilesTest, NamesBelowAFolder) {
  for (const char* name : {"a", "a/b", "..a", "a..", "...", "a b", ".a"}) EXPECT_TRUE(is_name_below(name)) << name;
  for (const char* name : {"", "/", "/a", "a/", "a//b", "..", "../a", "a/..", "a/../b", ".", "./a", "a/."}) {
    EXPECT_FALSE(is_name_below(name)) << name;
  }
  EXPECT_FALSE(is_name_below(std::string_view("a\0b", 3)));
}

TEST_F(FilesTest, MakesNestedFolders) {
  make_directories(dir_ / "a" / "b" / "c");
  make_directories(dir_ / "a" / "b" / "c");
  EXPECT_TRUE(fs::is_directory(dir_ / "a" / "b" / "c"));
}

}  // namespace
}  // namespace nmoe
