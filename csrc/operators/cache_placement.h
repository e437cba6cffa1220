// On which memory nodes the rows of the key and value caches lie, where these stay at one address: past and present are one
// buffer, as in the previous call. Caches that grow move in every call, and asking about all of their pages each time would
// cost more than it saves.
#pragma once
#include <mutex>
#include <utility>
#include <vector>

#include "operators/attention.h"
#include "plan/key_nodes.h"
#include "runtime/node_claims.h"
#include "runtime/placement.h"

namespace ort_hina::operators {

class CachePlacement {
 public:
  // Bytes of keys and values that a call must read at least: less is read from the processor's caches, or so quickly that no
  // plan pays.
  static constexpr size_t kLeastBytes = size_t{1} << 20;

  CachePlacement(runtime::ThreadNodes threads, runtime::PageSource pages, size_t least_bytes = kLeastBytes)
      : threads_(std::move(threads)), pages_(std::move(pages)), least_bytes_(least_bytes) {}

  // What is known. It stays as it is until the lease ends.
  class Lease {
   public:
    Lease() = default;
    Lease(std::unique_lock<std::mutex> lock, KeyPlacement placement) : lock_(std::move(lock)), placement_(placement) {}
    // Null: the call is to be planned without regard to nodes.
    const KeyPlacement* placement() const { return placement_.heads ? &placement_ : nullptr; }

   private:
    std::unique_lock<std::mutex> lock_;
    KeyPlacement placement_ = {};
  };

  // Before a call with these inputs. Asks about pages with rows of the past that were not asked about yet; of two calls at the
  // same time one goes without.
  Lease look(const AttentionInputs& in, const AttentionRule& rule);

 private:
  struct Buffers {
    const void *keys, *values;
    DataType type;
    size_t batch, kv_heads, length, key_size, value_size;
    bool operator==(const Buffers& other) const;
  };
  struct Head {
    plan::PageMap keys, values;  // from row 0 on, as far as was asked
  };

  void forget(const Buffers& buffers);
  bool ask(const AttentionInputs& in, size_t kv_heads);
  bool ask(const Cache& cache, DataType type, size_t head, size_t rows, plan::PageMap* map);

  const runtime::ThreadNodes threads_;
  const runtime::PageSource pages_;
  const size_t least_bytes_;
  std::mutex mutex_;
  bool refused_ = false;  // the kernel does not say where pages lie
  Buffers buffers_ = {};
  std::vector<Head> heads_;            // of each sequence
  std::vector<plan::KeyNodes> nodes_;  // the same
  std::vector<plan::Node> answers_;
};

}  // namespace ort_hina::operators
