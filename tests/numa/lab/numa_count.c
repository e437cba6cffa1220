// A plugin of QEMU's emulation that counts which node's memory each CPU reads and writes.
//
// Counts the accesses of user code to watched ranges of virtual addresses, by CPU and by the node that the physical page
// belongs to. The guest says what to watch (guest/counter.py): it reads an address inside a control window, and the address
// is the message. Kernel code is not instrumented, so booting stays fast.
//
// Arguments: megabytes=A:B:... (memory of each node), out=PATH (where counts go).
//
// For the plugin interfaces of QEMU 7.2 (Debian 12) and 10.0 (Debian 13): QEMU_PLUGIN_VERSION is 1 or 2. Debian ships no
// header of it, so what is used of it is declared here.
#include <inttypes.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

typedef uint64_t qemu_plugin_id_t;
typedef uint32_t qemu_plugin_meminfo_t;
struct qemu_plugin_tb;
struct qemu_plugin_insn;
struct qemu_plugin_hwaddr;
typedef struct {
  const char* target_name;
  struct {
    int min, cur;
  } version;
  bool system_emulation;
  union {
    struct {
      int smp_vcpus, max_vcpus;
    } system;
  };
} qemu_info_t;
typedef void (*qemu_plugin_vcpu_tb_trans_cb_t)(qemu_plugin_id_t, struct qemu_plugin_tb*);
typedef void (*qemu_plugin_vcpu_mem_cb_t)(unsigned vcpu, qemu_plugin_meminfo_t, uint64_t vaddr, void*);
typedef void (*qemu_plugin_udata_cb_t)(qemu_plugin_id_t, void*);
void qemu_plugin_register_vcpu_tb_trans_cb(qemu_plugin_id_t, qemu_plugin_vcpu_tb_trans_cb_t);
void qemu_plugin_register_atexit_cb(qemu_plugin_id_t, qemu_plugin_udata_cb_t, void*);
void qemu_plugin_register_vcpu_mem_cb(struct qemu_plugin_insn*, qemu_plugin_vcpu_mem_cb_t, int flags, int rw, void*);
size_t qemu_plugin_tb_n_insns(const struct qemu_plugin_tb*);
struct qemu_plugin_insn* qemu_plugin_tb_get_insn(const struct qemu_plugin_tb*, size_t);
uint64_t qemu_plugin_insn_vaddr(const struct qemu_plugin_insn*);
unsigned qemu_plugin_mem_size_shift(qemu_plugin_meminfo_t);
bool qemu_plugin_mem_is_store(qemu_plugin_meminfo_t);
struct qemu_plugin_hwaddr* qemu_plugin_get_hwaddr(qemu_plugin_meminfo_t, uint64_t vaddr);
bool qemu_plugin_hwaddr_is_io(const struct qemu_plugin_hwaddr*);
uint64_t qemu_plugin_hwaddr_phys_addr(const struct qemu_plugin_hwaddr*);
enum { kNoRegisters = 0, kLoadsAndStores = 3 };

#define EXPORT __attribute__((visibility("default")))
EXPORT int qemu_plugin_version = QEMU_PLUGIN_VERSION;

// A read of kControl + 8 * p is the message "page number p". As in guest/counter.py.
static const uint64_t kControl = 0x100000000000, kControlSize = (uint64_t)8 << 35;
// Above it lies the kernel.
static const int kUserBits = 47;

enum { kMost = 64 };
typedef struct {
  uint64_t begin, end;
} Range;

static uint64_t bytes[kMost][kMost][2];  // [CPU][node][store]
static Range ranges[kMost];
static uint64_t node_end[kMost];  // in the guest's memory without holes
static int cpus, nodes, watched;
static bool doubled;  // whether QEMU counts where a block of memory begins twice
static FILE* out;

static void print(void) {
  for (int cpu = 0; cpu < cpus; cpu++)
    for (int store = 0; store < 2; store++) {
      uint64_t any = 0;
      for (int node = 0; node < nodes; node++) any |= bytes[cpu][node][store];
      if (!any) continue;
      fprintf(out, "cpu %d %s", cpu, store ? "store" : "load");
      for (int node = 0; node < nodes; node++) fprintf(out, " %" PRIu64, bytes[cpu][node][store]);
      fprintf(out, "\n");
    }
  fprintf(out, "end\n");
  fflush(out);
}

// Messages come in pairs of pages: (0, n) begins block n, without ranges; (first, last) adds a range, which ends before the
// last page; (0, 0) ends the block and prints its counts.
static void control(uint64_t page) {
  static uint64_t first;
  static bool second;
  if (!second) {
    first = page;
  } else if (first) {
    if (watched < kMost) ranges[watched++] = (Range){first << 12, page << 12};
  } else {
    if (page) {
      memset(bytes, 0, sizeof bytes);
      fprintf(out, "block %" PRIu64 "\n", page);
    } else {
      print();
    }
    watched = 0;
  }
  second = !second;
}

static int node_of(const struct qemu_plugin_hwaddr* hardware) {
  const uint64_t hole_begin = (uint64_t)3 << 30, hole_end = (uint64_t)4 << 30;  // numa_vm.sh puts it there
  uint64_t at = qemu_plugin_hwaddr_phys_addr(hardware);
  if (!doubled && at >= hole_end) at -= hole_end - hole_begin;
  for (int node = 0; node < nodes; node++) {
    // A block of memory is a node's. With its begin counted twice: at = 2 * begin + offset, and offset < size.
    if (at < node_end[node] + (doubled && node ? node_end[node - 1] : 0)) return node;
  }
  return -1;
}

static void on_access(unsigned cpu, qemu_plugin_meminfo_t info, uint64_t address, void* unused) {
  (void)unused;
  if (address - kControl < kControlSize) {
    control((address - kControl) / 8);
    return;
  }
  bool inside = false;
  for (int i = 0; i < watched; i++) inside |= address >= ranges[i].begin && address < ranges[i].end;
  if (!inside) return;
  const struct qemu_plugin_hwaddr* hardware = qemu_plugin_get_hwaddr(info, address);
  if (!hardware || qemu_plugin_hwaddr_is_io(hardware)) return;
  const int node = node_of(hardware);
  if (cpu < kMost && node >= 0) bytes[cpu][node][qemu_plugin_mem_is_store(info)] += 1u << qemu_plugin_mem_size_shift(info);
}

static void on_translation(qemu_plugin_id_t id, struct qemu_plugin_tb* block) {
  (void)id;
  for (size_t i = 0, count = qemu_plugin_tb_n_insns(block); i < count; i++) {
    struct qemu_plugin_insn* instruction = qemu_plugin_tb_get_insn(block, i);
    if (qemu_plugin_insn_vaddr(instruction) >> kUserBits) continue;
    qemu_plugin_register_vcpu_mem_cb(instruction, on_access, kNoRegisters, kLoadsAndStores, NULL);
  }
}

static void on_finish(qemu_plugin_id_t id, void* unused) {
  (void)id, (void)unused;
  if (watched) print();
}

static void read_sizes(const char* list) {
  uint64_t end = 0;
  for (char* next; nodes < kMost; list = next + 1) {
    end += strtoull(list, &next, 10) << 20;
    node_end[nodes++] = end;
    if (*next != ':') break;
  }
}

EXPORT int qemu_plugin_install(qemu_plugin_id_t id, const qemu_info_t* info, int argc, char** argv) {
  for (int i = 0; i < argc; i++) {
    if (!strncmp(argv[i], "megabytes=", 10)) read_sizes(argv[i] + 10);
    if (!strncmp(argv[i], "out=", 4)) out = fopen(argv[i] + 4, "w");
  }
  cpus = info->system.max_vcpus;
  if (!info->system_emulation || !out || !nodes || cpus > kMost) return 1;
  // Interface 1 gives the offset of a block among all blocks plus its address in the guest's memory, and the two are equal;
  // later ones give the physical address.
  doubled = info->version.cur < 2;
  qemu_plugin_register_vcpu_tb_trans_cb(id, on_translation);
  qemu_plugin_register_atexit_cb(id, on_finish, NULL);
  return 0;
}
