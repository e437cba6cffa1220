// A tool for tests: executes Intel AMX instructions on an x86-64 Linux machine without AMX.
//
// Every AMX instruction raises SIGILL on such a machine. The emulator's handler decodes the instruction at RIP, executes it
// on a tile state of the thread's own as the Intel SDM describes, and resumes after it. The code under test is the real
// compiled code; nothing in it has to change.
//
//   linked in, or opened by dlopen(): call amx_emu_install() once, and again after others installed their own SIGILL handler
//   preloaded: LD_PRELOAD=libamx_emulator.so installs itself, stays in front of other handlers, and grants the permission
//   for tiles that the kernel would refuse; AMX_EMU_STATS=1 prints the counts at exit
//
// Emulated: AMX-TILE, AMX-INT8, AMX-BF16, AMX-FP16, AMX-COMPLEX. What the hardware would refuse (#UD, #GP) prints a
// diagnosis and aborts, unless a fault hook is set.
#pragma once
#include <stdint.h>

#pragma GCC visibility push(default)
#ifdef __cplusplus
extern "C" {
#endif

enum amx_emu_op {
  AMX_EMU_LDTILECFG,
  AMX_EMU_STTILECFG,
  AMX_EMU_TILERELEASE,
  AMX_EMU_TILEZERO,
  AMX_EMU_TILELOADD,
  AMX_EMU_TILELOADDT1,
  AMX_EMU_TILESTORED,
  AMX_EMU_TDPBSSD,
  AMX_EMU_TDPBSUD,
  AMX_EMU_TDPBUSD,
  AMX_EMU_TDPBUUD,
  AMX_EMU_TDPBF16PS,
  AMX_EMU_TDPFP16PS,
  AMX_EMU_TCMMIMFP16PS,
  AMX_EMU_TCMMRLFP16PS,
  AMX_EMU_OP_COUNT
};

// Which CPU's AMX to emulate; an instruction outside is a #UD.
enum {
  AMX_EMU_TILE = 1,
  AMX_EMU_INT8 = 2,
  AMX_EMU_BF16 = 4,
  AMX_EMU_FP16 = 8,
  AMX_EMU_COMPLEX = 16,
  AMX_EMU_SAPPHIRE_RAPIDS = AMX_EMU_TILE | AMX_EMU_INT8 | AMX_EMU_BF16,
  AMX_EMU_GRANITE_RAPIDS = AMX_EMU_SAPPHIRE_RAPIDS | AMX_EMU_FP16,
  AMX_EMU_ALL = AMX_EMU_GRANITE_RAPIDS | AMX_EMU_COMPLEX
};

// Is AMX usable here without the emulator (CPUID, XCR0)? Asks the kernel for the permission to use tiles.
int amx_emu_native(void);

// Installs the SIGILL handler where it is not in front already. 0, or -1 where the host lacks AVX2, FMA or F16C. SIGILLs
// that are not AMX go on to the handler that was there before.
int amx_emu_install(void);
void amx_emu_uninstall(void);
int amx_emu_installed(void);

void amx_emu_set_features(unsigned mask);  // AMX_EMU_ALL unless it is set

struct amx_emu_fault {
  const char* vector;       // "#UD" or "#GP"
  const char* instruction;  // mnemonic
  const char* reason;
  uint64_t rip;
};
// The hook runs inside the signal handler. It may leave with siglongjmp (use sigsetjmp(env, 1)); where it returns, diagnosis
// and abort follow. Returns the hook that was set before.
typedef void (*amx_emu_fault_hook)(const struct amx_emu_fault*);
amx_emu_fault_hook amx_emu_set_fault_hook(amx_emu_fault_hook hook);

// Instructions emulated so far, of all threads together. They let a test prove that AMX ran, and are a model of its cost.
uint64_t amx_emu_count(enum amx_emu_op op);
uint64_t amx_emu_total(void);
uint64_t amx_emu_traps(void);  // SIGILLs taken: AMX instructions in a row share one
void amx_emu_reset_counts(void);
const char* amx_emu_op_name(enum amx_emu_op op);

#ifdef __cplusplus
}
#endif
#pragma GCC visibility pop
