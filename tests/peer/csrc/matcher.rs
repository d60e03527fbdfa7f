// aho-corasick: a crate with `std` that uses another one; automata of what the input says, panics caught, allocation, formatting.
use aho_corasick::{AhoCorasickBuilder, MatchKind};
use std::collections::BTreeMap;
use std::panic;

fn give(text: &str, out: *mut u8, room: i64) -> i64 {
    if text.len() as i64 > room {
        return -2;
    }
    unsafe { std::ptr::copy_nonoverlapping(text.as_ptr(), out, text.len()) };
    text.len() as i64
}

fn bytes<'a>(data: *const u8, size: i64) -> &'a [u8] {
    unsafe { std::slice::from_raw_parts(data, size as usize) }
}

// The first line has the patterns, the rest is searched.
#[no_mangle]
pub extern "C" fn find_patterns(data: *const u8, size: i64, out: *mut u8, room: i64) -> i64 {
    let text = bytes(data, size);
    let end = text.iter().position(|&byte| byte == b'\n').unwrap_or(text.len());
    let patterns: Vec<&[u8]> = text[..end].split(|&byte| byte == b' ').filter(|pattern| !pattern.is_empty()).collect();
    let mut shown = String::new();
    for kind in [MatchKind::Standard, MatchKind::LeftmostFirst, MatchKind::LeftmostLongest] {
        let automaton = AhoCorasickBuilder::new().match_kind(kind).dfa(size % 2 == 0).build(&patterns);
        for found in automaton.find_iter(&text[end..]) {
            shown += &format!("{}:{}-{} ", found.pattern(), found.start(), found.end());
        }
    }
    give(&shown, out, room)
}

#[no_mangle]
pub extern "C" fn count_words(data: *const u8, size: i64, out: *mut u8, room: i64) -> i64 {
    let text = String::from_utf8_lossy(bytes(data, size)).to_lowercase();
    let mut counts: BTreeMap<&str, (usize, f64)> = BTreeMap::new();
    for (place, word) in text.split_whitespace().enumerate() {
        let entry = counts.entry(word).or_default();
        entry.0 += 1;
        entry.1 += place as f64 / 3.0;
    }
    give(&format!("{:?}", counts), out, room)
}

// Indexes past the end, divisions by zero and text that is no number: what a panic says, after what it unwinds was dropped.
#[no_mangle]
pub extern "C" fn catch_panics(data: *const u8, size: i64, out: *mut u8, room: i64) -> i64 {
    struct Drops<'a>(&'a std::cell::Cell<u32>);
    impl Drop for Drops<'_> {
        fn drop(&mut self) {
            self.0.set(self.0.get() + 1);
        }
    }
    panic::set_hook(Box::new(|_| {}));
    let text = bytes(data, size);
    let drops = std::cell::Cell::new(0);
    let result = panic::catch_unwind(panic::AssertUnwindSafe(|| {
        let _one = Drops(&drops);
        let list: Vec<i64> = text.iter().map(|&byte| byte as i64).collect();
        let index = list[0] as usize % 16;
        let _other = Box::new(Drops(&drops));
        let word = String::from_utf8_lossy(&text[1..]).split(' ').next().unwrap_or("").to_string();
        100 / (list[index] % 4) + word.parse::<i64>().unwrap_or(list[index])
    }));
    let said = match result {
        Ok(value) => format!("{}", value),
        Err(error) => match error.downcast_ref::<String>() {
            Some(text) => text.clone(),
            None => error.downcast_ref::<&str>().unwrap_or(&"?").to_string(),
        },
    };
    give(&format!("{} {}", said, drops.get()), out, room)
}

#[no_mangle]
pub extern "C" fn in_threads(data: *const u8, size: i64, out: *mut u8, room: i64) -> i64 {
    thread_local! { static SEEN: std::cell::RefCell<Vec<u8>> = std::cell::RefCell::new(Vec::new()); }
    let text = bytes(data, size).to_vec();
    let (sender, receiver) = std::sync::mpsc::channel();
    let workers: Vec<_> = (0..2u8)
        .map(|number| {
            let (own, sender) = (text.clone(), sender.clone());
            std::thread::spawn(move || {
                SEEN.with(|seen| seen.borrow_mut().extend(own.iter().filter(|&&byte| byte % 2 == number)));
                sender.send((number, SEEN.with(|seen| seen.borrow().iter().map(|&byte| byte as u64).sum::<u64>()))).unwrap();
            })
        })
        .collect();
    workers.into_iter().for_each(|worker| worker.join().unwrap());
    drop(sender);
    let mut sums: Vec<_> = receiver.iter().collect();
    sums.sort();
    give(&format!("{:?} {}", sums, SEEN.with(|seen| seen.borrow().len())), out, room)
}
