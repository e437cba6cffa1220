// Weight windows on machines with several memory nodes: placed as the session's options ask, and asked where they lie.
#pragma once
#include <onnxruntime_cxx_api.h>

#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "plan/page_map.h"
#include "plan/placement_choice.h"
#include "plan/stored_matrix.h"
#include "runtime/topology.h"

namespace ort_hina::ort {

constexpr char kNumaKey[] = "ort_hina.numa";

// The value of kNumaKey; empty: read. Throws std::invalid_argument for anything but off, read, interleave and bind.
plan::NumaMode parse_numa_mode(const std::string& text);

// Of one registration; its sessions may be created at the same time.
class NumaWindows {
 public:
  explicit NumaWindows(plan::NumaMode mode) : mode_(mode) {}

  // The machine whose placement this node's session regards; null: none of it, as place() says.
  const runtime::Topology* topology(const OrtKernelInfo* info);

  // Where the window of this node lies, after it was re-placed if the mode asks for that: same address, same content. Empty if
  // the mode is off, or the process may use CPUs of one node only: then nothing is looked at.
  //
  // What is wrong with the placement is logged as a warning, once for each session and kind; what was done, and how long it took,
  // as information. None of it is an error.
  plan::PageMap place(const OrtKernelInfo* info, const void* window, size_t bytes,
                      const std::vector<plan::StoredMatrix>& matrices);

 private:
  enum Warning { kNotPlaced, kCrowded, kUnknown, kWarnings };
  struct Session {
    const runtime::Topology* topology = nullptr;
    bool warned[kWarnings] = {};
  };
  class Log;

  // A session is known by its logger, the only thing of it that a kernel is shown.
  const runtime::Topology& topology_of(const OrtLogger* session);
  bool first(const OrtLogger* session, Warning warning);
  void replace(const void* window, size_t bytes, const std::vector<plan::StoredMatrix>& matrices,
               const runtime::Topology& topology, const Log& log);
  void judge(const plan::PageMap& map, const runtime::Topology& topology, const Log& log);

  const plan::NumaMode mode_;
  std::mutex mutex_;
  std::map<const OrtLogger*, Session> sessions_;
};

}  // namespace ort_hina::ort
