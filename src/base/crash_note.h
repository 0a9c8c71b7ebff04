// Words for a crash inside of a library that reads other people's bytes.
#pragma once

#include <string>

namespace nmoe {

// What to say, kept ready where a crash can be told of without allocating anything.
class CrashNote {
 public:
  // An error's words: "what", and what to do about it.
  CrashNote(const std::string& what, const std::string& remedy);

  // While it lives, SIGSEGV, SIGFPE, SIGILL and SIGABRT in this thread end the program at once: with the note on stderr
  // and exit code 1, files being left as a kill leaves them. The innermost one counts; it must not outlive its note.
  class Scope {
   public:
    explicit Scope(const CrashNote& note);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    const CrashNote* outer_;
  };

 private:
  static void on_signal(int signal);

  std::string text_;
};

}  // namespace nmoe
