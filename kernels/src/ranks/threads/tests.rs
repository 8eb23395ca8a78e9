//! Tests that ranks meet, at any pace, and do not wait for ranks that have left.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::thread;
use std::time::Duration;

use super::*;

const RANKS: usize = 4;
const TIMES: usize = if cfg!(miri) { 10 } else { 2_000 };

/// The values that `rank` sends the `time`-th time; every rank sends a different number of them.
fn part(rank: usize, time: usize) -> Vec<f32> {
    let len = (rank * 5 + time * 3) % 7;
    (0..len)
        .map(|i| (i + 10 * rank + 100 * time) as f32)
        .collect()
}

/// Sleeps now and then, every rank at other times.
fn dawdle(rank: usize, time: usize) {
    if (time * 7 + rank * 13).is_multiple_of(97) {
        thread::sleep(2 * SPIN);
    }
}

#[test]
fn all_have_what_all_brought_every_time() {
    thread::scope(|scope| {
        for link in Threads::new(RANKS) {
            scope.spawn(move || {
                let rank = link.rank();
                let mut words = Vec::new();
                for time in 0..TIMES {
                    dawdle(rank, time);
                    let parts: Vec<_> = (0..RANKS).map(|rank| part(rank, time)).collect();
                    let lens: Vec<usize> = parts.iter().map(Vec::len).collect();
                    let mut all = vec![-1.0; lens.iter().sum()];
                    link.all_gather(&parts[rank], &lens, &mut all);
                    assert_eq!(all, parts.concat(), "rank {rank}, time {time}");
                    if time % 3 == 0 {
                        // freed as soon as all have read it
                        let mut mine = part(rank, time + 1);
                        let mut seen = Vec::new();
                        link.show(&mine, |rank, part| seen.push((rank, part.to_vec())));
                        mine.fill(-1.0);
                        let shown = (0..RANKS).map(|rank| (rank, part(rank, time + 1)));
                        assert_eq!(seen, shown.collect::<Vec<_>>(), "rank {rank}, time {time}");
                    }
                    let said: Vec<u32> = (0..time as u32 % 5).collect();
                    words.clear();
                    words.resize(rank, 7);
                    if rank == 0 {
                        words.clone_from(&said);
                    }
                    link.broadcast(&mut words);
                    assert_eq!(words, said, "rank {rank}, time {time}");
                }
            });
        }
    });
}

#[test]
fn nobody_waits_for_who_has_left() {
    let mut links = Threads::new(2).into_iter();
    let (first, second) = links.next().zip(links.next()).expect("two");
    let gather = |link: &Threads| {
        let mut all = [0.0; 2];
        link.all_gather(&[link.rank() as f32], &[1, 1], &mut all);
        all
    };
    thread::scope(|scope| {
        let leaves = scope.spawn(move || {
            let all = gather(&second);
            thread::sleep(Duration::from_millis(5));
            all
        });
        // the message that it wrote before it left is there
        assert_eq!(gather(&first), [0.0, 1.0]);
        let waits = catch_unwind(AssertUnwindSafe(|| gather(&first)));
        let why = waits.expect_err("there is nobody");
        let why = why.downcast_ref::<String>().expect("a text");
        assert_eq!(why, "rank 1 of 2 is gone");
        assert_eq!(leaves.join().expect("it left in peace"), [0.0, 1.0]);
    });
}

/// Checks that shown values stay until no rank reads them, also where a rank is lost meanwhile.
#[test]
fn what_is_shown_stays_until_nobody_reads_it() {
    let long = if cfg!(miri) { 20_000 } else { 10_000 };
    let see = |link: Threads, slow: bool| {
        let mine = Box::new([link.rank() as f32; 4]);
        link.show(&*mine, |rank, part| {
            assert!(!slow || rank < 2, "planted");
            if slow {
                thread::sleep(Duration::from_micros(long));
            }
            assert_eq!(part, [rank as f32; 4]);
        });
    };
    thread::scope(|scope| {
        let links = Threads::new(3).into_iter().enumerate();
        let lost: Vec<_> = links
            .map(|(rank, link)| {
                scope.spawn(move || catch_unwind(AssertUnwindSafe(|| see(link, rank == 2))))
            })
            .collect();
        for (rank, one) in lost.into_iter().enumerate() {
            let why = one.join().expect("it is caught").expect_err("all are lost");
            if rank < 2 {
                let why = why.downcast_ref::<String>().expect("a text");
                assert!(
                    why.starts_with("rank ") && why.ends_with(" of 3 is gone"),
                    "{why}"
                );
            }
        }
    });
}
