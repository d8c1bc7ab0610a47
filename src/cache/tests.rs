use std::sync::mpsc;

use super::*;

fn key(chunk: usize) -> usize {
    chunk
}

fn make(cache: &Arc<Cache<usize>>, chunk: usize, bytes: usize) -> Outcome {
    match cache.lookup(key(chunk)) {
        Lookup::Missing(ticket) => {
            let reservation = ticket.reserve(bytes as u64);
            ticket.finish(Ok(Block::from_vec(vec![chunk as u8; bytes], reservation)))
        }
        Lookup::Hit(block) => Ok(block),
        Lookup::Busy(_) => panic!("nobody else makes blocks here"),
    }
}

#[test]
fn the_least_recently_used_block_goes_first() {
    let cache = Cache::new(300, 100);
    for chunk in 0..3 {
        make(&cache, chunk, 100).unwrap();
    }
    make(&cache, 0, 100).unwrap();
    make(&cache, 3, 100).unwrap();
    let there: Vec<bool> = (0..4).map(|chunk| cache.has(key(chunk))).collect();
    assert_eq!(there, [true, false, true, true]);
    assert_eq!(cache.used(), 300);
    assert_eq!(cache.counters().evictions, 1);
}

#[test]
fn a_pinned_block_stays_and_its_bytes_stay_counted() {
    let cache = Cache::new(200, 100);
    let pin = cache.pin(key(0), make(&cache, 0, 150).unwrap());
    let transient = make(&cache, 1, 100).unwrap();
    assert!(!transient.is_accounted(), "there is no room beside the pinned block");
    assert!(!cache.has(key(1)), "what was not accounted for is not kept");
    assert_eq!(cache.used(), 150);
    drop(pin);
    assert!(make(&cache, 1, 100).unwrap().is_accounted());
    assert!(!cache.has(key(0)));
}

#[test]
fn bytes_come_back_only_when_the_last_reader_is_done() {
    let cache = Cache::new(100, 100);
    let reader = make(&cache, 0, 100).unwrap();
    assert!(!make(&cache, 1, 100).unwrap().is_accounted());
    assert_eq!(cache.used(), 100);
    drop(reader);
    assert_eq!(cache.used(), 0);
}

#[test]
fn the_number_of_blocks_is_bounded_too() {
    let cache = Cache::new(1000, 3);
    for chunk in 0..10 {
        make(&cache, chunk, 1).unwrap();
    }
    assert!(cache.counters().blocks <= 3);
}

#[test]
fn those_who_wait_get_what_was_made_and_nobody_makes_it_twice() {
    let cache = Cache::new(1000, 100);
    let Lookup::Missing(ticket) = cache.lookup(key(0)) else {
        panic!("nothing is there yet")
    };
    let (tx, rx) = mpsc::channel();
    for _ in 0..8 {
        let Lookup::Busy(pending) = cache.lookup(key(0)) else {
            panic!("it is being made")
        };
        let tx = tx.clone();
        pending.subscribe(move |outcome| tx.send(outcome.unwrap().len()).unwrap());
    }
    ticket
        .finish(Ok(Block::from_vec(vec![7; 5], cache.reserve(5))))
        .unwrap();
    drop(tx);
    assert_eq!(rx.iter().collect::<Vec<_>>(), [5; 8]);
    assert_eq!(cache.counters().misses, 1);
}

#[test]
fn a_failure_reaches_those_who_wait_and_the_next_one_tries_again() {
    let cache = Cache::new(1000, 100);
    let Lookup::Missing(ticket) = cache.lookup(key(0)) else {
        panic!("nothing is there yet")
    };
    let Lookup::Busy(pending) = cache.lookup(key(0)) else {
        panic!("it is being made")
    };
    let (tx, rx) = mpsc::channel();
    pending.subscribe(move |outcome| tx.send(matches!(outcome, Err(Failure::Abandoned))).unwrap());
    drop(ticket);
    assert!(rx.recv().unwrap());
    assert!(matches!(cache.lookup(key(0)), Lookup::Missing(_)));
}
