// How a call is cut for the caches: panels of inputs, blocks of columns (16 outputs each), groups of token blocks. Included
// inside an ISA namespace.

// Sums of more inputs than this are added panel by panel, for any number of tokens: a token answers the same in any company.
// 256 tokens × 1024 inputs and two blocks of weights take 512 + 2·384 KB of an L2 of 2 MB, and bringing a tile's sum into C
// once in 32 products costs a few percent of them.
constexpr size_t kPanelInputs = 1024;
struct Panel {
  size_t begin, inputs, steps;
};
// Panels of equal length, so that none is too short to be worth its passage through C.
struct Panels {
  size_t k, length, count;
  explicit Panels(size_t k) : k(k) {
    const size_t steps = padded_inputs(k) / kBlockInputs;
    const size_t least = (k + kPanelInputs - 1) / kPanelInputs;
    const size_t each = least ? (steps + least - 1) / least : 0;
    length = each * kBlockInputs;
    count = each ? (steps + each - 1) / each : 1;
  }
  Panel operator[](size_t i) const {
    const size_t begin = i * length;
    const size_t inputs = k - begin < length ? k - begin : length;
    return {begin, inputs, padded_inputs(inputs) / kBlockInputs};
  }
};

// The weights of kMostColumns stay in L2 while all tokens pass. With few tokens weights are read once: 64 rows of [N,K], the
// four products in flight of one token block.
constexpr size_t kStreamColumns = kMostShortLine;
// A block of 5 columns is better covered than one of 4 and one of 1.
inline size_t next_block(size_t columns_left, size_t most) {
  constexpr size_t kFive = 5;
  if (columns_left <= most || columns_left == kFive) return columns_left;
  return columns_left % 2 && columns_left < most + kFive ? columns_left - kFive : most;
}

// 16 blocks of tokens: see kPanelInputs.
constexpr size_t kGroupBlocks = 16;
inline size_t group_length(size_t blocks) {
  const size_t groups = (blocks + kGroupBlocks - 1) / kGroupBlocks;
  return (blocks + groups - 1) / groups;
}

// Where a call stands in its weights: a block of columns of a panel.
struct Place {
  size_t panel, column, count;
};

// Panels before columns: each weight is used once, whole rows of [N,K] in turn. Columns before panels: a panel's tokens stay
// in L2 until all weights have passed.
enum class Order { kPanelsFirst, kColumnsFirst };

struct Walk {
  Panels panels;
  size_t columns, blocks;
  Order order;

  Walk(const MatmulArgs& p, Order order)
      : panels(p.k),
        columns((p.n + kTileOutputs - 1) / kTileOutputs),
        blocks((p.m + kBlockTokens - 1) / kBlockTokens),
        order(order) {}

  Place at(size_t panel, size_t column) const {
    return {panel, column, next_block(columns - column, order == Order::kPanelsFirst ? kStreamColumns : kMostColumns)};
  }
  Place first() const { return at(0, 0); }
  bool advance(Place& place) const {
    const bool more_columns = place.column + place.count < columns, more_panels = place.panel + 1 < panels.count;
    if (!more_columns && !more_panels) return false;
    if (order == Order::kPanelsFirst)
      place = more_panels ? at(place.panel + 1, place.column) : at(0, place.column + place.count);
    else
      place = more_columns ? at(place.panel, place.column + place.count) : at(place.panel + 1, 0);
    return true;
  }
  // Of the micro-kernels that cover a block.
  size_t steps(const Place& place) const {
    const size_t pieces = blocks == 1 ? place.count / kMostShortLine : place.count / 2 * (blocks / 2);
    return panels[place.panel].steps * (pieces ? pieces : 1);
  }
};

// Form: see Cover. Its `ahead` is what is done for the next block between the products of this one, a little at each step.
template <class Form>
void run_blocks(Form& form, const Walk& walk) {
  if (walk.columns == 0 || walk.blocks == 0) return;
  const size_t length = group_length(walk.blocks);
  Place place = walk.first();
  for (bool more = true; more;) {
    Place next = place;
    more = walk.advance(next);
    form.begin(place, more ? &next : nullptr);
    for (form.first_block = 0; form.first_block < walk.blocks; form.first_block += length) {
      const size_t left = walk.blocks - form.first_block;
      Cover<Form>(form).run(place.count, left < length ? left : length);
    }
    form.end();
    place = next;
  }
}
