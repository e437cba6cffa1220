// Attention of a block of query rows with an online softmax, in blocks of keys: scores, weights, values. While one of them is
// computed with, what comes next is fetched. Included inside an ISA namespace, after attention_values.inl.

// The part of a block of keys, counted from its first, that a row sees.
inline KeyRange within(const KeyRange& visible, const KeyRange& block) {
  const size_t begin = visible.begin > block.begin ? visible.begin : block.begin;
  const size_t end = visible.end < block.end ? visible.end : block.end;
  if (begin >= end) return {0, 0};
  return {begin - block.begin, end - block.begin};
}

// Keys [all.begin, all.end) are seen by every row, and none outside [any.begin, any.end) by any.
struct Seen {
  KeyRange all, any;

  explicit Seen(const AttendArgs& p) : all(p.range), any{p.range.end, p.range.begin} {
    for (size_t r = 0; r < p.rows; ++r) {
      const KeyRange& own = p.visible[r];
      if (own.begin > all.begin) all.begin = own.begin;
      if (own.end < all.end) all.end = own.end;
      if (own.begin >= own.end) continue;
      if (own.begin < any.begin) any.begin = own.begin;
      if (own.end > any.end) any.end = own.end;
    }
    if (any.begin < p.range.begin) any.begin = p.range.begin;
    if (any.end > p.range.end) any.end = p.range.end;
  }
};

// The keys of a call that any row sees, in blocks of at most kAttentionKeys that lie beside each other; {0, 0} at the end.
class KeyBlocks {
 public:
  KeyBlocks(const AttendArgs& p, const KeyRange& any)
      : run_(p.runs ? p.runs : &p.range), end_(run_ + (p.runs ? p.run_count : 1)), begin_(any.begin), last_(any.end) {}

  KeyRange next() {
    for (; run_ < end_; ++run_) {
      const size_t begin = begin_ > run_->begin ? begin_ : run_->begin, end = last_ < run_->end ? last_ : run_->end;
      if (begin >= end) continue;
      begin_ = end - begin < kAttentionKeys ? end : begin + kAttentionKeys;
      return {begin, begin_};
    }
    return {0, 0};
  }

 private:
  const KeyRange* run_;
  const KeyRange* const end_;
  size_t begin_;
  const size_t last_;
};

inline Ahead first_of_next(const AttendArgs& p) {
  const size_t count = p.next_count < kAttentionKeys ? p.next_count : kAttentionKeys;
  return {static_cast<const uint8_t*>(p.next_keys), count * p.key_size * size_of(p.type)};
}

// `Arithmetic`: begin(args, scratch), scores(args, scratch, keys, count, ahead), values(args, scratch, values, seen, count,
// ahead), end(args, scratch).
template <class Arithmetic>
void attend_with(const AttendArgs& p) {
  const Seen seen(p);
  if (seen.any.begin >= seen.any.end) return;
  const AttendScratch s(p);
  for (size_t r = 0; r < s.lanes; ++r) {
    s.most[r] = r < p.rows ? p.state.most[r] : -kInf;
    s.sum[r] = r < p.rows ? p.state.sum[r] : 0.0f;
  }
  Arithmetic::begin(p, s);
  const uint8_t* const keys = static_cast<const uint8_t*>(p.keys);
  const uint8_t* const values = static_cast<const uint8_t*>(p.values);
  const size_t key_bytes = p.key_size * size_of(p.type), value_bytes = p.value_size * size_of(p.type);
  KeyBlocks blocks(p, seen.any);
  for (KeyRange block = blocks.next(), next; block.begin < block.end; block = next) {
    next = blocks.next();
    const size_t count = block.end - block.begin, coming = next.end - next.begin;
    const Ahead values_ahead = {values + block.begin * value_bytes, count * value_bytes};
    Ahead keys_ahead = {keys + next.begin * key_bytes, coming * key_bytes};
    if (!coming && p.next_keys) keys_ahead = first_of_next(p);
    const KeyRange* each = nullptr;
    if (p.bias || block.begin < seen.all.begin || block.end > seen.all.end) {
      for (size_t r = 0; r < p.rows; ++r) s.seen[r] = within(p.visible[r], block);
      each = s.seen;
    }
    Arithmetic::scores(p, s, keys + block.begin * key_bytes, count, values_ahead);
    weigh_block(p, s, each, block.begin, count, keys_ahead);
    Arithmetic::values(p, s, values + block.begin * value_bytes, each, count, keys_ahead);
  }
  Arithmetic::end(p, s);
  for (size_t r = 0; r < p.rows; ++r) p.state.most[r] = s.most[r], p.state.sum[r] = s.sum[r];
}

// All in f32: what is stored otherwise is widened, exactly.
template <DataType T>
struct FloatAttention {
  static void begin(const AttendArgs& p, const AttendScratch& s) {
    p.rows > FewRows::kMost ? pack_lanes(p, s) : FewRows::begin(p, s);
  }
  static void scores(const AttendArgs& p, const AttendScratch& s, const uint8_t* keys, size_t count,
                     const Ahead& ahead) {
    p.rows > FewRows::kMost ? score_lanes<T>(p, s, keys, count, ahead) : FewRows::scores<T>(p, s, keys, count, ahead);
  }
  static void values(const AttendArgs& p, const AttendScratch& s, const uint8_t* values, const KeyRange* seen, size_t count,
                     const Ahead& ahead) {
    AddValues<ValueTile<T>>{p, s, values, seen, count, ahead}.run();
  }
  static void end(const AttendArgs&, const AttendScratch&) {}
};

inline void attend_float(const AttendArgs& p) {
  switch (p.type) {
    case DataType::kF32: return attend_with<FloatAttention<DataType::kF32>>(p);
    case DataType::kF16: return attend_with<FloatAttention<DataType::kF16>>(p);
    case DataType::kBF16: return attend_with<FloatAttention<DataType::kBF16>>(p);
  }
}
