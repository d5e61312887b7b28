// Whose code is calling: the files mapped into this process, and the one that a chain of calls leads back to.
#pragma once
#include <cstdint>
#include <initializer_list>
#include <string>
#include <vector>

namespace hg {

// /proc/self/maps, read when it is made and again when an address is in none of the files. It takes no lock of the
// dynamic loader, which a callback must not wait for: whoever holds it may be waiting for the driver.
class MappedFiles {
 public:
  MappedFiles() { read(); }
  // The path of the first file whose name starts so; empty if there is none.
  std::string find(const std::string &start) const;
  // The path of the file that an address lies in; empty for memory of no file.
  const std::string &at(uintptr_t address);

 private:
  struct Part {
    uintptr_t begin, end;
    size_t file;
  };
  void read();
  const Part *part(uintptr_t address) const;
  std::vector<Part> parts_;  // ascending
  std::vector<std::string> files_;
};

std::string base_name(const std::string &path);

// The file name of the library whose code made the call that is under way in this thread: the innermost one that is
// neither the driver, CUPTI, the CUDA runtime, the C and C++ libraries, the interpreter nor this extension. "triton"
// for the modules that Triton builds for itself. Empty if there is none or the stack cannot be read so far.
// `skipped`: addresses inside further files to pass over.
std::string calling_library(MappedFiles &files, std::initializer_list<uintptr_t> skipped);

// To be called once outside any callback: the first walk over a stack loads a library.
void prepare_stack_walks();

}  // namespace hg
