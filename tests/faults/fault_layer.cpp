// A layer between a program and its files, loaded with LD_PRELOAD: what goes wrong below a real one goes wrong here, at
// the call that was asked for.
//
//   NMOE_FAULT_ROOT    only files below this folder count
//   NMOE_FAULT_MATCH   and of those only files whose paths contain this
//   NMOE_FAULT_COUNT   file of 8 bytes: how many calls that change files there were
//   NMOE_FAULT_AT      the call to strike at, from 1; 0: none
//   NMOE_FAULT_KIND    kill: SIGKILL before it, a write half done; enospc, eio: it alone fails so;
//                      full: from it on, whatever takes room fails
//   NMOE_FAULT_SHADOW  folder that gets what is durable, by inode: <inode>.data is a file's content when it was synced
//                      last, <inode>.list a folder's entries ("d 12 name" or "f 13 name")
#include <dirent.h>
#include <dlfcn.h>
#include <fcntl.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/sendfile.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

#include <cerrno>
#include <cstdarg>
#include <cstdint>
#include <cstdlib>
#include <cstring>
#include <mutex>
#include <string>

namespace {

struct Settings {
  std::string root, match, kind, shadow;
  uint64_t at = 0;
  uint64_t* count = nullptr;
};

const Settings& settings() {
  static const Settings* const made = [] {
    auto* s = new Settings;  // kept to the end: files change until then
    const auto text = [](const char* name) {
      const char* value = std::getenv(name);
      return std::string(value == nullptr ? "" : value);
    };
    s->root = text("NMOE_FAULT_ROOT");
    s->match = text("NMOE_FAULT_MATCH");
    s->kind = text("NMOE_FAULT_KIND");
    s->shadow = text("NMOE_FAULT_SHADOW");
    s->at = std::strtoull(text("NMOE_FAULT_AT").c_str(), nullptr, 10);
    const auto fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, text("NMOE_FAULT_COUNT").c_str(), O_RDWR));
    if (fd >= 0) {
      s->count = static_cast<uint64_t*>(::mmap(nullptr, 8, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0));
      ::syscall(SYS_close, fd);
    }
    return s;
  }();
  return *made;
}

std::recursive_mutex& turn() {
  static auto* const mutex = new std::recursive_mutex;
  return *mutex;
}

template <class Function>
Function next(const char* name) {
  return reinterpret_cast<Function>(::dlsym(RTLD_NEXT, name));
}
#define NEXT(name) static const auto real = next<decltype(&name)>(#name)

std::string path_of(int fd) {
  char path[4096];
  const ssize_t size = ::readlink(("/proc/self/fd/" + std::to_string(fd)).c_str(), path, sizeof(path));
  return size < 0 ? std::string() : std::string(path, static_cast<size_t>(size));
}

std::string path_of(int dir, const char* name) {
  if (name[0] == '/') return name;
  char here[4096];
  const std::string base = dir != AT_FDCWD ? path_of(dir) : ::getcwd(here, sizeof(here)) != nullptr ? here : "";
  return base + "/" + name;
}

bool counts(const std::string& path) {
  const Settings& s = settings();
  return s.count != nullptr && path.size() > s.root.size() && path.starts_with(s.root) &&
         path.find(s.match) != std::string::npos;
}

enum class Call { kGrows, kOther };
constexpr int kKill = -1;

// What is to befall a call on `path`: 0 nothing, an errno, or kKill.
int fate_of(const std::string& path, Call call) {
  if (!counts(path)) return 0;
  const Settings& s = settings();
  const uint64_t number = ++*s.count;
  if (s.at == 0 || number < s.at) return 0;
  if (s.kind == "full") return call == Call::kGrows ? ENOSPC : 0;
  if (number > s.at) return 0;
  return s.kind == "kill" ? kKill : s.kind == "eio" ? EIO : ENOSPC;
}

void die() { ::kill(::getpid(), SIGKILL); }

// Whether the call fails, errno set.
bool fails(const std::string& path, Call call = Call::kOther) {
  const int fate = fate_of(path, call);
  if (fate == kKill) die();
  if (fate > 0) errno = fate;
  return fate != 0;
}

// ---- what is durable

void write_shadow(ino_t inode, const char* suffix, const std::string& text) {
  if (settings().shadow.empty()) return;
  const std::string path = settings().shadow + "/" + std::to_string(inode) + suffix;
  const auto fd = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, path.c_str(), O_WRONLY | O_CREAT | O_TRUNC, 0644));
  for (size_t done = 0; done < text.size();) {
    const auto count = ::syscall(SYS_write, fd, text.data() + done, text.size() - done);
    if (count <= 0) std::abort();
    done += static_cast<size_t>(count);
  }
  ::syscall(SYS_close, fd);
}

void begin_shadow(const std::string& path) {
  struct stat status {};
  if (settings().shadow.empty() || ::stat(path.c_str(), &status) != 0) return;
  write_shadow(status.st_ino, S_ISDIR(status.st_mode) ? ".list" : ".data", "");
}

void make_durable(int fd) {
  struct stat status {};
  if (settings().shadow.empty() || ::fstat(fd, &status) != 0) return;
  const std::string link = "/proc/self/fd/" + std::to_string(fd);
  std::string text;
  if (S_ISDIR(status.st_mode)) {
    DIR* dir = ::opendir(link.c_str());
    while (const dirent* entry = ::readdir(dir)) {
      const std::string name = entry->d_name;
      if (name == "." || name == "..") continue;
      text += std::string(entry->d_type == DT_DIR ? "d " : "f ") + std::to_string(entry->d_ino) + " " + name + "\n";
    }
    ::closedir(dir);
    write_shadow(status.st_ino, ".list", text);
  } else if (S_ISREG(status.st_mode)) {
    const auto file = static_cast<int>(::syscall(SYS_openat, AT_FDCWD, link.c_str(), O_RDONLY));
    char block[1 << 16];
    for (ssize_t count; (count = ::syscall(SYS_read, file, block, sizeof(block))) > 0;) {
      text.append(block, static_cast<size_t>(count));
    }
    ::syscall(SYS_close, file);
    write_shadow(status.st_ino, ".data", text);
  }
}

int opened(int dir, const char* name, int flags, mode_t mode) {
  const std::lock_guard lock(turn());
  const std::string path = path_of(dir, name);
  const bool creates = (flags & O_CREAT) != 0 && ::faccessat(dir, name, F_OK, 0) != 0;
  if ((creates || (flags & O_TRUNC) != 0) && fails(path, creates ? Call::kGrows : Call::kOther)) return -1;
  const auto fd = static_cast<int>(::syscall(SYS_openat, dir, name, flags, mode));
  if (fd >= 0 && creates && counts(path)) begin_shadow(path);
  return fd;
}

mode_t mode_of(int flags, va_list list) {
  return (flags & (O_CREAT | O_TMPFILE)) != 0 ? static_cast<mode_t>(va_arg(list, unsigned)) : 0;
}

// Half of a write is done before the process is killed in it.
template <class Half, class Whole>
ssize_t written(int fd, Half half, Whole whole) {
  const std::lock_guard lock(turn());
  const int fate = fate_of(path_of(fd), Call::kGrows);
  if (fate == kKill) {
    half();
    die();
  }
  if (fate > 0) {
    errno = fate;
    return -1;
  }
  return whole();
}

}  // namespace

extern "C" {

#define OPENS(name, dir, ...)               \
  va_list list;                             \
  va_start(list, flags);                    \
  const mode_t mode = mode_of(flags, list); \
  va_end(list);                             \
  return opened(dir, name, flags, mode)

int open(const char* name, int flags, ...) { OPENS(name, AT_FDCWD); }
int open64(const char* name, int flags, ...) { OPENS(name, AT_FDCWD); }
int openat(int dir, const char* name, int flags, ...) { OPENS(name, dir); }
int openat64(int dir, const char* name, int flags, ...) { OPENS(name, dir); }
int creat(const char* name, mode_t mode) { return opened(AT_FDCWD, name, O_WRONLY | O_CREAT | O_TRUNC, mode); }

ssize_t write(int fd, const void* data, size_t bytes) {
  return written(
      fd, [&] { ::syscall(SYS_write, fd, data, bytes / 2); }, [&] { return ::syscall(SYS_write, fd, data, bytes); });
}
ssize_t pwrite64(int fd, const void* data, size_t bytes, off64_t at) {
  return written(
      fd, [&] { ::syscall(SYS_pwrite64, fd, data, bytes / 2, at); },
      [&] { return ::syscall(SYS_pwrite64, fd, data, bytes, at); });
}
ssize_t pwrite(int fd, const void* data, size_t bytes, off_t at) { return pwrite64(fd, data, bytes, at); }
ssize_t writev(int fd, const iovec* parts, int count) {
  return written(
      fd, [&] { ::syscall(SYS_writev, fd, parts, count / 2); },
      [&] { return ::syscall(SYS_writev, fd, parts, count); });
}
ssize_t copy_file_range(int in, off64_t* in_at, int out, off64_t* out_at, size_t bytes, unsigned flags) {
  return written(
      out, [] {}, [&] { return ::syscall(SYS_copy_file_range, in, in_at, out, out_at, bytes, flags); });
}
ssize_t sendfile64(int out, int in, off64_t* at, size_t bytes) {
  return written(
      out, [] {}, [&] { return ::syscall(SYS_sendfile, out, in, at, bytes); });
}
ssize_t sendfile(int out, int in, off_t* at, size_t bytes) { return sendfile64(out, in, at, bytes); }

// On a file.
#define CHANGES_FILE(call, ...)            \
  const std::lock_guard lock(turn());      \
  if (fails(path_of(fd), call)) return -1; \
  return static_cast<int>(::syscall(__VA_ARGS__))

int ftruncate64(int fd, off64_t size) noexcept { CHANGES_FILE(Call::kOther, SYS_ftruncate, fd, size); }
int ftruncate(int fd, off_t size) noexcept { return ftruncate64(fd, size); }
int fallocate64(int fd, int mode, off64_t at, off64_t size) {
  CHANGES_FILE(Call::kGrows, SYS_fallocate, fd, mode, at, size);
}
int fallocate(int fd, int mode, off_t at, off_t size) { return fallocate64(fd, mode, at, size); }
int fchmod(int fd, mode_t mode) noexcept { CHANGES_FILE(Call::kOther, SYS_fchmod, fd, mode); }

int fsync(int fd) {
  const std::lock_guard lock(turn());
  const std::string path = path_of(fd);
  if (!counts(path + "/")) return 0;  // nothing here outlives the machine anyway
  if (fails(path)) return -1;
  make_durable(fd);
  return 0;
}
int fdatasync(int fd) { return fsync(fd); }

// On a folder.
int renameat2(int from_dir, const char* from, int to_dir, const char* to, unsigned flags) noexcept {
  const std::lock_guard lock(turn());
  if (fails(path_of(to_dir, to))) return -1;
  return static_cast<int>(::syscall(SYS_renameat2, from_dir, from, to_dir, to, flags));
}
int renameat(int from_dir, const char* from, int to_dir, const char* to) noexcept {
  return renameat2(from_dir, from, to_dir, to, 0);
}
int rename(const char* from, const char* to) noexcept { return renameat2(AT_FDCWD, from, AT_FDCWD, to, 0); }
int unlinkat(int dir, const char* name, int flags) noexcept {
  const std::lock_guard lock(turn());
  if (fails(path_of(dir, name))) return -1;
  return static_cast<int>(::syscall(SYS_unlinkat, dir, name, flags));
}
int unlink(const char* name) noexcept { return unlinkat(AT_FDCWD, name, 0); }
int rmdir(const char* name) noexcept { return unlinkat(AT_FDCWD, name, AT_REMOVEDIR); }
int remove(const char* name) noexcept {
  const int code = unlink(name);
  return code != 0 && errno == EISDIR ? rmdir(name) : code;
}
int mkdirat(int dir, const char* name, mode_t mode) noexcept {
  const std::lock_guard lock(turn());
  const std::string path = path_of(dir, name);
  if (fails(path, Call::kGrows)) return -1;
  const auto code = static_cast<int>(::syscall(SYS_mkdirat, dir, name, mode));
  if (code == 0 && counts(path)) begin_shadow(path);
  return code;
}
int mkdir(const char* name, mode_t mode) noexcept { return mkdirat(AT_FDCWD, name, mode); }
int linkat(int from_dir, const char* from, int to_dir, const char* to, int flags) noexcept {
  const std::lock_guard lock(turn());
  if (fails(path_of(to_dir, to), Call::kGrows)) return -1;
  return static_cast<int>(::syscall(SYS_linkat, from_dir, from, to_dir, to, flags));
}
int link(const char* from, const char* to) noexcept { return linkat(AT_FDCWD, from, AT_FDCWD, to, 0); }

}  // extern "C"
