#include "amx_emulator/tile_state.h"

#include <pthread.h>
#include <stdlib.h>
#include <sys/mman.h>

namespace ort_hina::amx_emulator {
namespace {

// A pointer only: a library that is opened late finds little room for thread-local data.
__thread TileState* tls_state __attribute__((tls_model("initial-exec")));
pthread_key_t key;
pthread_once_t key_once = PTHREAD_ONCE_INIT;

void free_state(void* p) {
  tls_state = nullptr;
  munmap(p, sizeof(TileState));
}

void make_key() { pthread_key_create(&key, free_state); }

}  // namespace

void prepare_thread_states() { pthread_once(&key_once, make_key); }

TileState& thread_state() {
  if (!tls_state) {
    // Not malloc(): the signal may have come in the middle of it.
    void* p = mmap(nullptr, sizeof(TileState), PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);
    if (p == MAP_FAILED) abort();
    tls_state = static_cast<TileState*>(p);
    pthread_setspecific(key, p);
  }
  return *tls_state;
}

}  // namespace ort_hina::amx_emulator
