//! The page tables against a model in which every sequence simply owns a list.

use std::collections::HashMap;

use super::block_pool::BlockPool;
use super::block_table::PageCopy;
use super::{BlockTable, OutOfPages, PAGE, PageId};
use proptest::prelude::*;

/// A backend's pages: 16 numbers each, written and copied.
#[derive(Default)]
struct Storage(HashMap<PageId, [u64; PAGE]>);

impl Storage {
    fn copy(&mut self, copies: &[PageCopy]) {
        for c in copies {
            let page = self.0.get(&c.from).copied().unwrap_or_default();
            self.0.insert(c.to, page);
        }
    }

    fn write(&mut self, table: &BlockTable, position: usize, value: u64) {
        let (page, i) = table.locate(position).expect("reserved");
        self.0.entry(page).or_default()[i] = value;
    }

    /// Returns all positions whose pages were not freed.
    fn read(&self, table: &BlockTable) -> Vec<u64> {
        (table.passed() * PAGE..table.len())
            .map(|p| {
                let (page, i) = table.locate(p).expect("written");
                self.0[&page][i]
            })
            .collect()
    }
}

/// A table and its expected contents.
type Sequence = (BlockTable, Vec<u64>);

#[derive(Clone, Debug)]
enum Step {
    Append { seq: usize, n: usize },
    ReserveOnly { seq: usize, n: usize },
    Truncate { seq: usize, n: usize },
    Pass { seq: usize, n: usize },
    Fork { seq: usize },
    Drop { seq: usize },
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let step = prop_oneof![
        4 => (0..8usize, 0..40usize).prop_map(|(seq, n)| Step::Append { seq, n }),
        1 => (0..8usize, 0..40usize).prop_map(|(seq, n)| Step::ReserveOnly { seq, n }),
        2 => (0..8usize, 0..80usize).prop_map(|(seq, n)| Step::Truncate { seq, n }),
        2 => (0..8usize, 0..6usize).prop_map(|(seq, n)| Step::Pass { seq, n }),
        2 => (0..8usize).prop_map(|seq| Step::Fork { seq }),
        1 => (0..8usize).prop_map(|seq| Step::Drop { seq }),
    ];
    prop::collection::vec(step, 0..80)
}

/// Checks that every sequence reads its own history, reference counts match, and no page is lost.
fn check(pool: &BlockPool, storage: &Storage, seqs: &[Sequence]) {
    let mut owners: HashMap<PageId, u32> = HashMap::new();
    for (table, expected) in seqs {
        assert_eq!(storage.read(table), expected[table.passed() * PAGE..]);
        for &page in table.pages() {
            *owners.entry(page).or_default() += 1;
        }
    }
    for page in 0..pool.capacity() as u32 {
        assert_eq!(
            pool.ref_count(PageId(page)),
            owners.get(&PageId(page)).copied().unwrap_or(0),
            "page {page}"
        );
    }
    assert_eq!(pool.used_pages(), owners.len());
    assert_eq!(pool.free_pages() + pool.used_pages(), pool.capacity());
}

fn append(
    pool: &mut BlockPool,
    storage: &mut Storage,
    seq: &mut Sequence,
    n: usize,
    next: &mut u64,
) {
    let (table, expected) = seq;
    let (end, needed, free) = (
        table.len() + n,
        table.pages_needed(pool, table.len() + n),
        pool.free_pages(),
    );
    let before = (table.pages().to_vec(), table.len());
    match table.reserve(pool, end) {
        Ok(copies) => {
            assert_eq!(free - pool.free_pages(), needed);
            assert!(
                copies.len() <= 1,
                "only the page that is partly written has to be copied"
            );
            storage.copy(&copies);
            for p in table.len()..end {
                *next += 1;
                storage.write(table, p, *next);
                expected.push(*next);
            }
            table.advance(end);
        }
        Err(OutOfPages {
            needed: n,
            free: f,
            capacity,
        }) => {
            assert_eq!((n, f, capacity), (needed, free, pool.capacity()));
            assert!(needed > free);
            assert_eq!((table.pages().to_vec(), table.len()), before);
            assert_eq!(pool.free_pages(), free);
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig { cases: 400, ..ProptestConfig::default() })]

    #[test]
    fn tables_behave_as_lists(capacity in 0..24u32, steps in steps()) {
        let mut pool = BlockPool::new(capacity);
        let mut storage = Storage::default();
        let mut seqs: Vec<Sequence> = (0..2).map(|_| (BlockTable::new(), Vec::new())).collect();
        let mut next = 0;
        for step in steps {
            let n_seqs = seqs.len();
            match step {
                Step::Append { seq, n } => {
                    append(&mut pool, &mut storage, &mut seqs[seq % n_seqs], n, &mut next);
                }
                Step::ReserveOnly { seq, n } => {
                    let table = &mut seqs[seq % n_seqs].0;
                    if let Ok(copies) = table.reserve(&mut pool, table.len() + n) {
                        storage.copy(&copies);
                        prop_assert!(table.capacity() >= table.len() + n);
                        prop_assert_eq!(table.pages_needed(&pool, table.len() + n), 0);
                    }
                }
                Step::Truncate { seq, n } => {
                    let (table, expected) = &mut seqs[seq % n_seqs];
                    // freed pages are gone
                    let n = if n < table.passed() * PAGE { 0 } else { n };
                    table.truncate(&mut pool, n);
                    expected.truncate(n);
                    prop_assert_eq!(table.places(), table.len().div_ceil(PAGE));
                }
                Step::Pass { seq, n } => {
                    let table = &mut seqs[seq % n_seqs].0;
                    let places = n.min(table.len() / PAGE);
                    table.pass(&mut pool, places);
                    prop_assert!(table.passed() >= places);
                }
                Step::Fork { seq } => {
                    let (table, expected) = &seqs[seq % n_seqs];
                    let free = pool.free_pages();
                    let fork = (table.fork(&mut pool), expected.clone());
                    prop_assert_eq!(pool.free_pages(), free);
                    seqs.push(fork);
                }
                Step::Drop { seq } => {
                    seqs[seq % n_seqs].0.clear(&mut pool);
                    seqs[seq % n_seqs].1.clear();
                }
            }
            check(&pool, &storage, &seqs);
        }
        for (table, _) in &mut seqs {
            table.clear(&mut pool);
        }
        prop_assert_eq!(pool.free_pages(), capacity as usize);
    }
}

#[test]
fn page_boundaries() {
    let mut pool = BlockPool::new(2);
    let mut t = BlockTable::new();
    for (end, pages) in [(0, 0), (1, 1), (15, 1), (16, 1), (17, 2), (32, 2)] {
        assert_eq!(t.reserve(&mut pool, end), Ok(vec![]));
        assert_eq!(t.pages().len(), pages, "{end} positions");
    }
    let full = OutOfPages {
        needed: 1,
        free: 0,
        capacity: 2,
    };
    assert_eq!(t.reserve(&mut pool, 33), Err(full));
    assert_eq!(
        full.to_string(),
        "the KV cache is full: 1 pages needed, 0 of 2 free"
    );
    assert_eq!(t.locate(17), Some((t.pages()[1], 1)));
    assert_eq!(t.locate(32), None);
    t.advance(32);
    t.truncate(&mut pool, 16);
    assert_eq!((t.len(), t.pages().len(), pool.free_pages()), (16, 1, 1));
}

#[test]
fn a_fork_that_ends_on_a_page_boundary_copies_nothing() {
    let mut pool = BlockPool::new(4);
    let mut a = BlockTable::new();
    a.reserve(&mut pool, PAGE).unwrap();
    a.advance(PAGE);
    let mut b = a.fork(&mut pool);
    assert_eq!(b.reserve(&mut pool, PAGE + 1), Ok(vec![]));
    assert_eq!(a.pages()[0], b.pages()[0]);
    // a partly written page is copied by the first that writes to it; the other then owns it alone
    b.advance(PAGE + 1);
    let mut c = b.fork(&mut pool);
    let shared = b.pages()[1];
    let copies = b.reserve(&mut pool, PAGE + 2).unwrap();
    assert_eq!(
        copies,
        [PageCopy {
            from: shared,
            to: b.pages()[1]
        }]
    );
    assert_eq!(c.reserve(&mut pool, PAGE + 2), Ok(vec![]));
    assert_eq!(c.pages()[1], shared);
}

#[test]
fn pages_reserved_before_a_fork_are_not_given_to_it() {
    let mut pool = BlockPool::new(4);
    let mut a = BlockTable::new();
    a.reserve(&mut pool, 40).unwrap();
    a.advance(8);
    let b = a.fork(&mut pool);
    assert_eq!(b.pages(), &a.pages()[..1]);
    // the page both began is copied, though a had reserved it before the fork
    assert_eq!(a.reserve(&mut pool, 9).unwrap().len(), 1);
}

#[test]
#[should_panic(expected = "free already")]
fn releasing_twice_is_a_fault_of_the_program() {
    let mut pool = BlockPool::new(1);
    let page = pool.alloc(1).unwrap()[0];
    assert!(pool.release(page));
    pool.release(page);
}

#[test]
#[should_panic(expected = "not reserved")]
fn writing_past_the_reservation_is_a_fault_of_the_program() {
    BlockTable::new().advance(1);
}
