#include "amx_emulator/decode.h"

#include <string.h>

namespace ort_hina::amx_emulator {
namespace {

uint64_t general_register(const ucontext_t* context, int number) {
  static const int8_t kIndex[16] = {REG_RAX, REG_RCX, REG_RDX, REG_RBX, REG_RSP, REG_RBP, REG_RSI, REG_RDI,
                                    REG_R8,  REG_R9,  REG_R10, REG_R11, REG_R12, REG_R13, REG_R14, REG_R15};
  return static_cast<uint64_t>(context->uc_mcontext.gregs[kIndex[number]]);
}

// The three-byte VEX prefix, opcode and ModRM. Only the low half of the register file exists for tiles, so most extension
// bits must be off.
struct Encoding {
  bool r, x, b;  // extension bits, not inverted
  int vvvv, pp;  // pp: 0 none, 1 66, 2 F3, 3 F2
  uint8_t opcode, modrm;
  int mod() const { return modrm >> 6; }
  int reg() const { return modrm >> 3 & 7; }
  int rm() const { return modrm & 7; }
  bool memory() const { return mod() != 3; }
};

bool read_encoding(const uint8_t* p, Encoding* e) {
  if (p[0] != 0xC4) return false;
  constexpr int kMap0F38 = 2;
  if ((p[1] & 0x1F) != kMap0F38) return false;
  if (p[2] & 0x84) return false;  // W and L are 0
  *e = {!(p[1] & 0x80), !(p[1] & 0x40), !(p[1] & 0x20), ~p[2] >> 3 & 15, p[2] & 3, p[3], 0};
  if (e->opcode != 0x49 && e->opcode != 0x4B && e->opcode != 0x5C && e->opcode != 0x5E && e->opcode != 0x6C) return false;
  e->modrm = p[4];
  return true;
}

bool configuration_op(const Encoding& e, amx_emu_op* op) {
  if (e.vvvv != 0) return false;
  if (e.memory() && e.reg() == 0 && e.pp == 0) return *op = AMX_EMU_LDTILECFG, true;
  if (e.memory() && e.reg() == 0 && e.pp == 1) return *op = AMX_EMU_STTILECFG, true;
  if (e.modrm == 0xC0 && e.pp == 0) return *op = AMX_EMU_TILERELEASE, true;
  if (!e.memory() && e.rm() == 0 && e.pp == 3) return *op = AMX_EMU_TILEZERO, true;
  return false;
}

bool move_op(const Encoding& e, amx_emu_op* op) {
  constexpr int kSib = 4;
  if (!e.memory() || e.rm() != kSib || e.vvvv != 0) return false;
  if (e.pp == 3) return *op = AMX_EMU_TILELOADD, true;
  if (e.pp == 1) return *op = AMX_EMU_TILELOADDT1, true;
  if (e.pp == 2) return *op = AMX_EMU_TILESTORED, true;
  return false;
}

bool product_op(const Encoding& e, amx_emu_op* op) {
  static const int8_t kOps[3][4] = {
      {-1, -1, AMX_EMU_TDPBF16PS, AMX_EMU_TDPFP16PS},                        // 5C
      {AMX_EMU_TDPBUUD, AMX_EMU_TDPBUSD, AMX_EMU_TDPBSUD, AMX_EMU_TDPBSSD},  // 5E
      {AMX_EMU_TCMMRLFP16PS, AMX_EMU_TCMMIMFP16PS, -1, -1}};                 // 6C
  const int found = kOps[e.opcode == 0x5C ? 0 : e.opcode == 0x5E ? 1 : 2][e.pp];
  if (e.memory() || found < 0 || e.vvvv >= 8) return false;
  *op = static_cast<amx_emu_op>(found);
  return true;
}

// Fills address and stride; `p` is at what follows ModRM. Returns the end of the instruction.
const uint8_t* read_memory_operand(const ucontext_t* context, const Encoding& e, const uint8_t* p, Instruction* in) {
  int base = e.rm() | e.b << 3, index = -1, scale = 0;
  bool rip_relative = false;
  if (e.rm() == 4) {
    const uint8_t sib = *p++;
    base = (sib & 7) | e.b << 3;
    index = (sib >> 3 & 7) | e.x << 3;
    if (index == 4) index = -1;  // means none; r12 is a real index
    scale = sib >> 6;
    if (e.mod() == 0 && (sib & 7) == 5) base = -1;
  } else if (e.mod() == 0 && e.rm() == 5) {
    rip_relative = true;
  }
  int64_t displacement = 0;
  if (e.mod() == 1) {
    displacement = static_cast<int8_t>(*p++);
  } else if (e.mod() == 2 || base < 0 || rip_relative) {
    int32_t wide;
    memcpy(&wide, p, 4);
    p += 4;
    displacement = wide;
  }
  in->address = static_cast<uint64_t>(displacement);
  in->stride = index < 0 ? 0 : general_register(context, index) << scale;
  if (rip_relative) in->address += reinterpret_cast<uint64_t>(p);
  else if (base >= 0) in->address += general_register(context, base);
  if (e.opcode == 0x49) in->address += in->stride;  // a configuration's operand is an ordinary one
  return p;
}

}  // namespace

bool decode(const ucontext_t* context, Instruction* in) {
  const auto* start = reinterpret_cast<const uint8_t*>(context->uc_mcontext.gregs[REG_RIP]);
  Encoding e;
  if (!read_encoding(start, &e)) return false;
  const bool known = e.opcode == 0x49   ? configuration_op(e, &in->op)
                     : e.opcode == 0x4B ? move_op(e, &in->op)
                                        : product_op(e, &in->op);
  if (!known || e.r || (!e.memory() && e.b)) return false;
  in->rip = start;
  in->reg = e.reg();
  in->rm = e.rm();
  in->vvvv = e.vvvv;
  const uint8_t* end = start + 5;
  if (e.memory()) end = read_memory_operand(context, e, end, in);
  in->length = static_cast<int>(end - start);
  return true;
}

}  // namespace ort_hina::amx_emulator
