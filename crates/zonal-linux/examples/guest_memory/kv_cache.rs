//! The key/value cache of a language model, which stores the values computed for each token of each conversation.
//!
//! A *sequence* is one conversation. Its *block table* is the list of fixed-size blocks that store its tokens, at any
//! address. The cache is bound to some nodes and frees blocks by itself. When no block can be allocated on these
//! nodes, the cache *preempts* the sequence that was idle longest: it frees the blocks, and recomputes the tokens
//! when the sequence continues. Related files: in contrast, the example `buffer_pool` lets the pool decide when to
//! free, through a reclaimer.

use std::collections::BTreeMap;
use std::error::Error;

use zonal_linux::{AllocFailure, Frames, NodeId, NodeMask, Order, PageCount, Pool, PoolPolicy, PoolRequest};

use crate::Check;

/// Order of a 64 KiB block.
const BLOCK: Order = match Order::new(4) {
    Some(order) => order,
    None => unreachable!(),
};
/// Size of one token's keys and values in bytes.
const TOKEN_BYTES: usize = 2048;
/// Number of tokens computed in one step.
const STEP_TOKENS: usize = 16;

/// Parameters of the load.
pub(crate) struct Serving {
    /// Amount of data computed, as a multiple of the cache's memory.
    pub(crate) fills: u64,
    /// Number of concurrent conversations.
    pub(crate) sequences: u64,
    /// Size of all sequences at their maximum length, as a multiple of the memory on the cache's nodes.
    pub(crate) overcommit: u64,
}

impl Default for Serving {
    fn default() -> Self {
        Self { fills: 5, sequences: 24, overcommit: 2 }
    }
}

/// Serves sequences from a cache on the first half of the pool's nodes, and checks every token.
pub(crate) fn run(pool: &Pool, serving: &Serving) -> Result<Vec<Check>, Box<dyn Error>> {
    let all = pool.memory_nodes();
    let nodes: Vec<NodeId> = all.iter().take(all.len().div_ceil(2)).collect();
    let mut cache = KvCache::new(pool, &nodes)?;
    serve(&mut cache, serving, cache_bytes(pool, &nodes))?;
    let (counts, in_place) = (cache.counts, cache.all_on(&nodes));
    cache.show(&nodes);
    Ok(vec![
        ("the cache never leaves its nodes", in_place),
        ("sequences make room for each other", counts.preempted > 0 && counts.finished > 0),
        ("every token read is the one written", counts.wrong == 0 && counts.checked > 0),
    ])
}

fn cache_bytes(pool: &Pool, nodes: &[NodeId]) -> u64 {
    let zones = pool.ranges().filter(|zone| nodes.contains(&zone.node));
    let frames: PageCount = zones.map(|zone| zone.frames.count).sum();
    frames.get() * pool.page_bytes() as u64
}

/// Runs all steps. Most steps continue the same few sequences, while the other sequences are idle.
fn serve(cache: &mut KvCache<'_>, serving: &Serving, bytes: u64) -> Result<(), AllocFailure> {
    let steps = bytes * serving.fills / (STEP_TOKENS * TOKEN_BYTES) as u64;
    let longest = (bytes * serving.overcommit / serving.sequences) as usize / TOKEN_BYTES;
    let mut random = fastrand::Rng::with_seed(1);
    // The current conversation of each client, and its length so far.
    let mut places: Vec<(u64, usize)> = (0..serving.sequences).map(|id| (id, 0)).collect();
    let mut fresh = serving.sequences;
    for _ in 0..steps {
        let place = (random.f64().powi(4) * places.len() as f64) as usize;
        let (id, length) = &mut places[place];
        *length += STEP_TOKENS;
        cache.extend(*id, *length)?;
        if *length >= longest {
            cache.finish(*id);
            (*id, *length) = (fresh, 0);
            fresh += 1;
        }
    }
    Ok(())
}

#[derive(Clone, Copy, Default)]
struct Counts {
    written: u64,
    checked: u64,
    wrong: u64,
    /// Number of tokens recomputed because their sequence had been preempted.
    again: u64,
    preempted: u64,
    finished: u64,
    most_blocks: usize,
}

struct KvCache<'p> {
    pool: &'p Pool,
    bind: PoolPolicy<'static>,
    sequences: BTreeMap<u64, Sequence>,
    /// Number of steps so far.
    now: u64,
    counts: Counts,
}

/// Invariant: `blocks` has exactly as many blocks as `tokens` need.
#[derive(Default)]
struct Sequence {
    tokens: usize,
    blocks: Vec<Frames>,
    last_used: u64,
    /// Length of the sequence before it was preempted.
    known: usize,
}

impl<'p> KvCache<'p> {
    fn new(pool: &'p Pool, nodes: &[NodeId]) -> Result<Self, Box<dyn Error>> {
        let bind = pool.bind(nodes.iter().copied().collect::<NodeMask>())?;
        Ok(Self { pool, bind, sequences: BTreeMap::new(), now: 0, counts: Counts::default() })
    }

    /// Computes the missing tokens among the first `length` tokens of a sequence.
    fn extend(&mut self, id: u64, length: usize) -> Result<(), AllocFailure> {
        self.now += 1;
        self.sequences.entry(id).or_default().last_used = self.now;
        while self.sequence(id).tokens < length {
            if self.sequence(id).is_full() {
                let block = self.take_block(id)?;
                self.sequence(id).blocks.push(block);
            }
            let sequence = self.sequence(id);
            let again = sequence.tokens < sequence.known;
            sequence.append(id);
            self.counts.written += 1;
            self.counts.again += u64::from(again);
        }
        let blocks = self.sequences.values().map(|sequence| sequence.blocks.len()).sum();
        self.counts.most_blocks = self.counts.most_blocks.max(blocks);
        Ok(())
    }

    /// Allocates a block on the cache's nodes, and preempts idle sequences if no block is free.
    fn take_block(&mut self, for_id: u64) -> Result<Frames, AllocFailure> {
        loop {
            // The request does not wait for reclaim, because the cache knows best which blocks to free.
            match self.pool.alloc(&PoolRequest::new(BLOCK).policy(&self.bind).no_wait()) {
                Ok(block) => return Ok(block),
                Err(failure) if !self.preempt_idlest(for_id) => return Err(failure),
                Err(_) => {}
            }
        }
    }

    /// Frees the blocks of the sequence that was idle longest. Returns `false` if no sequence other than `except` has
    /// blocks.
    fn preempt_idlest(&mut self, except: u64) -> bool {
        let others = self.sequences.iter_mut().filter(|(id, one)| **id != except && one.tokens > 0);
        let Some((&id, idlest)) = others.min_by_key(|(_, one)| one.last_used) else { return false };
        let (checked, wrong) = idlest.check(id);
        idlest.known = idlest.known.max(idlest.tokens);
        idlest.tokens = 0;
        idlest.blocks.clear();
        self.counts.checked += checked;
        self.counts.wrong += wrong;
        self.counts.preempted += 1;
        true
    }

    /// Ends a sequence after reading and checking all of it.
    fn finish(&mut self, id: u64) {
        let Some(sequence) = self.sequences.remove(&id) else { return };
        let (checked, wrong) = sequence.check(id);
        self.counts.checked += checked;
        self.counts.wrong += wrong;
        self.counts.finished += 1;
    }

    fn sequence(&mut self, id: u64) -> &mut Sequence {
        self.sequences.get_mut(&id).expect("entered when it was first extended")
    }

    fn all_on(&self, nodes: &[NodeId]) -> bool {
        let mut blocks = self.sequences.values().flat_map(|sequence| &sequence.blocks);
        blocks.all(|block| nodes.contains(&block.node()))
    }

    fn show(&self, nodes: &[NodeId]) {
        let Counts { written, again, checked, wrong, preempted, finished, most_blocks } = self.counts;
        let nodes: Vec<String> = nodes.iter().map(ToString::to_string).collect();
        println!("\nkey/value cache bound to nodes {}:", nodes.join(", "));
        println!("  tokens written   {written}, of which {again} again after preemption");
        println!("  tokens checked   {checked}, {wrong} wrong");
        println!(
            "  sequences        {finished} finished, {preempted} preempted, {} there",
            self.sequences.len()
        );
        println!("  blocks at most   {most_blocks} of {} KiB", (4 << BLOCK.get()));
    }
}

impl Sequence {
    fn tokens_in_block() -> usize {
        BLOCK.pages().get() as usize * 4096 / TOKEN_BYTES
    }

    fn is_full(&self) -> bool {
        self.tokens == self.blocks.len() * Self::tokens_in_block()
    }

    /// Writes the next token, for which the last block must have space.
    fn append(&mut self, id: u64) {
        let (block, at) = (self.tokens / Self::tokens_in_block(), self.tokens % Self::tokens_in_block());
        let bytes = &mut self.blocks[block][at * TOKEN_BYTES..][..TOKEN_BYTES];
        bytes.copy_from_slice(&values(id, self.tokens));
        self.tokens += 1;
    }

    /// Reads all tokens. Returns the number of tokens, and the number of tokens with wrong contents.
    fn check(&self, id: u64) -> (u64, u64) {
        let all = self.blocks.iter().flat_map(|block| block.chunks_exact(TOKEN_BYTES));
        let tokens = all.take(self.tokens).enumerate();
        let wrong = tokens.filter(|(token, bytes)| *bytes != values(id, *token)).count();
        (self.tokens as u64, wrong as u64)
    }
}

/// Returns the values that the model computes for a token of a sequence.
fn values(id: u64, token: usize) -> [u8; TOKEN_BYTES] {
    let mut bytes = [0; TOKEN_BYTES];
    fastrand::Rng::with_seed(id << 32 | token as u64).fill(&mut bytes);
    bytes
}
