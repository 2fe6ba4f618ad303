//! The queue in front of an engine, the order of random draws and the announced reads, under thousands of schedules of their threads.
//!
//! The files are those of the library; only the locks and threads are replaced ([`sync`]). The takers log what they take. Schedules are drawn at random and
//! by priorities that change at a few points (PCT), from a fixed seed; those of the reads alone, which do not spin, are enumerated completely. A thread
//! that is never woken is found as a deadlock.
//!
//! Each property has a case that lacks what ensures it, in which the same search must find the violation.
//!
//! `BURN_REMAT_TEST_SCHEDULES` sets how many schedules are drawn for each case.

use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::Arc;

use burn_backend::{DType, Shape};
use burn_ir::{OperationIr, TensorId, TensorIr, TensorStatus};
use shuttle::scheduler::{DfsScheduler, PctScheduler, RandomScheduler, Scheduler};
use shuttle::sync::mpsc::{Sender, channel};
use shuttle::{Config, Runner, thread};

#[path = "../../../burn-remat/src/door/queue.rs"]
mod queue;
#[path = "../../../burn-remat/src/door/reads.rs"]
mod reads;
mod sync;

use queue::{Draws, Limits, Queue, Taker};
use reads::Reads;
use sync::Mutex;

const SEED: u64 = 7;
/// Priorities change at this many points of a schedule.
const DEPTH: usize = 4;

fn schedules() -> usize {
    std::env::var("BURN_REMAT_TEST_SCHEDULES").map_or(200, |count| count.parse().expect("a number"))
}

fn under(scheduler: impl Scheduler + 'static, case: impl Fn() + Send + Sync + 'static) -> usize {
    let mut config = Config::new();
    config.stack_size = 1 << 17;
    config.failure_persistence = shuttle::FailurePersistence::None;
    Runner::new(scheduler, config).run(case)
}

/// Runs `case` under drawn schedules.
fn holds(name: &str, case: impl Fn() + Clone + Send + Sync + 'static) {
    let (count, again) = (schedules(), case.clone());
    let explored = under(RandomScheduler::new_from_seed(SEED, count), case)
        + under(PctScheduler::new_from_seed(SEED, DEPTH, count), again);
    println!("{name}: {explored} schedules");
    assert_eq!(explored, 2 * count);
}

/// Runs `case` under all its schedules.
fn always_holds(name: &str, case: impl Fn() + Send + Sync + 'static) {
    println!("{name}: all {} schedules", under(DfsScheduler::new(None, false), case));
}

/// Whether the search finds what is wrong with `case`.
fn is_found(case: impl Fn() + Send + Sync + 'static) -> bool {
    catch_unwind(AssertUnwindSafe(|| under(RandomScheduler::new_from_seed(SEED, 1000), case))).is_err()
}

// ---- the queue

/// The taker's thread soon sleeps, so that it must often be woken.
fn limits(capacity: usize) -> Limits {
    Limits { capacity, patience: 1 }
}

/// Logs what it takes, and notifies a listener.
struct Log<C> {
    taken: Vec<C>,
    listener: Option<Sender<()>>,
}

impl<C: Send + 'static> Log<C> {
    fn queue(capacity: usize) -> Arc<Queue<Self>> {
        Arc::new(Queue::new(Self { taken: Vec::new(), listener: None }, limits(capacity)))
    }
}

impl<C: Send + 'static> Taker for Log<C> {
    type Call = C;
    type Spare = ();

    fn take(&mut self, call: C) {
        self.taken.push(call);
        // Another thread may run between two calls.
        thread::yield_now();
        if let Some(listener) = &self.listener {
            listener.send(()).expect("there is a listener");
        }
    }

    fn exchange(&mut self, _: &mut ()) {}
}

/// What a thread requests.
#[derive(Clone, Copy, Debug, PartialEq)]
enum Asked {
    Enter,
    Operation(usize),
    Leave,
}

/// A stage that is open until this is dropped, like the library's.
struct Stage<'a>(usize, &'a Arc<Queue<Log<(usize, Asked)>>>);

impl<'a> Stage<'a> {
    fn open(thread: usize, queue: &'a Arc<Queue<Log<(usize, Asked)>>>) -> Self {
        queue.submit(|()| (thread, Asked::Enter));
        Self(thread, queue)
    }
}

impl Drop for Stage<'_> {
    fn drop(&mut self) {
        self.1.submit(|()| (self.0, Asked::Leave));
    }
}

const OF_ONE_THREAD: [Asked; 6] =
    [Asked::Enter, Asked::Operation(0), Asked::Enter, Asked::Operation(1), Asked::Leave, Asked::Leave];

/// Threads open stages and request operations within them. Each inspects what was taken once, with or without waiting for it.
fn stages(capacity: usize, waits: bool) {
    let queue = Log::queue(capacity);
    let ask = move |name: usize, queue: Arc<Queue<Log<(usize, Asked)>>>| {
        let outer = Stage::open(name, &queue);
        queue.submit(|()| (name, Asked::Operation(0)));
        let inner = Stage::open(name, &queue);
        queue.submit(|()| (name, Asked::Operation(1)));
        let of_mine = |log: &Log<(usize, Asked)>| -> Vec<Asked> {
            log.taken.iter().filter(|(thread, _)| *thread == name).map(|(_, asked)| *asked).collect()
        };
        let taken = if waits { of_mine(&queue.taker()) } else { of_mine(&queue.taker_as_it_is()) };
        assert_eq!(taken, OF_ONE_THREAD[..4]);
        drop(inner);
        drop(outer);
    };
    let threads: Vec<_> =
        (0..3).map(|name| (name, queue.clone())).map(|(name, queue)| thread::spawn(move || ask(name, queue))).collect();
    threads.into_iter().for_each(|thread| thread.join().expect("the thread ends"));
    let log = queue.taker();
    assert_eq!(log.taken.len(), 3 * OF_ONE_THREAD.len());
    for name in 0..3 {
        let own: Vec<Asked> = log.taken.iter().filter(|(thread, _)| *thread == name).map(|(_, asked)| *asked).collect();
        assert_eq!(own, OF_ONE_THREAD);
    }
}

#[test]
fn what_was_asked_is_taken_once_in_order_and_before_an_answer() {
    // The queue is full now and then, or never.
    for capacity in [2, 1000] {
        holds(&format!("stages, {capacity} calls may wait"), move || stages(capacity, true));
    }
    assert!(is_found(|| stages(1000, false)), "an answer that nobody has waited for");
}

/// One thread makes a request and waits until the taker's own thread has taken it; meanwhile another one asks for the taker.
fn is_taken_by_itself() {
    let queue = Log::queue(1000);
    let (sender, taken) = channel();
    queue.taker().listener = Some(sender);
    let other = queue.clone();
    let looks = thread::spawn(move || (0..2).for_each(|_| drop(other.taker())));
    for call in 0..3 {
        queue.submit(|()| call);
        taken.recv().expect("the taker lives");
    }
    looks.join().expect("the thread ends");
}

#[test]
fn what_was_asked_is_taken_without_anybody_waiting_for_it() {
    holds("the taker's thread", is_taken_by_itself);
    sync::LOSES_ONE.set(true);
    assert!(is_found(is_taken_by_itself), "a lost wake-up");
}

// ---- draws

/// A taker that draws from the shared generator when asked to.
struct Drawing {
    name: usize,
    generator: Arc<Mutex<Vec<(usize, usize)>>>,
}

impl Taker for Drawing {
    type Call = Option<usize>;
    type Spare = ();

    fn take(&mut self, draw: Option<usize>) {
        if let Some(number) = draw {
            self.generator.lock().push((self.name, number));
        }
    }

    fn exchange(&mut self, _: &mut ()) {}
}

/// Two threads draw in turns on two devices that share a generator.
fn draws(catches_up: bool) {
    let generator = Arc::new(Mutex::new(Vec::new()));
    let device = |name| Arc::new(Queue::new(Drawing { name, generator: generator.clone() }, limits(3)));
    let (devices, order) = (Arc::new([0, 1].map(device)), Arc::new(Draws::new()));
    let draw = move |devices: &[Arc<Queue<Drawing>>; 2], number: usize| {
        let device = &devices[number % 3 % 2];
        if catches_up {
            order.next(device);
        }
        device.submit(|()| Some(number));
        devices[number % 2].submit(|()| None);
    };
    let (baton, taken) = channel();
    let (first, second) = ((devices.clone(), draw.clone()), (devices.clone(), draw));
    let begins = thread::spawn(move || {
        (0..3).for_each(|number| (first.1)(&first.0, number));
        baton.send(()).expect("the other thread takes it");
    });
    taken.recv().expect("it is passed on");
    (3..6).for_each(|number| (second.1)(&second.0, number));
    begins.join().expect("the thread ends");
    devices.iter().for_each(|device| drop(device.taker()));
    let drawn: Vec<(usize, usize)> = generator.lock().clone();
    assert_eq!(drawn, (0..6).map(|number| (number % 3 % 2, number)).collect::<Vec<_>>());
}

#[test]
fn numbers_are_drawn_in_the_order_in_which_they_were_asked_for() {
    holds("draws", || draws(true));
    assert!(is_found(|| draws(false)), "draws of a device that has not caught up");
}

// ---- reads

fn drop_of(id: u64) -> OperationIr {
    let status = TensorStatus::ReadWrite;
    OperationIr::Drop(TensorIr { id: TensorId::new(id), shape: Shape::new([1]), status, dtype: DType::F32 })
}

/// A reader announces what it is about to read, and reads it while the session drops that tensor.
fn reads_before_drops(waits: bool) {
    let (reads, dropped) = (Arc::new(Reads::default()), Arc::new(Mutex::new(false)));
    let read = reads.announce(TensorId::new(1));
    let session = {
        let (reads, dropped) = (reads.clone(), dropped.clone());
        thread::spawn(move || {
            if waits {
                reads.let_pass(&drop_of(1));
            }
            *dropped.lock() = true;
        })
    };
    assert!(!*dropped.lock(), "the tensor is gone");
    drop(read);
    session.join().expect("the thread ends");
    // The announced read is over.
    reads.let_pass(&drop_of(1));
}

/// A reader that reads only after another tensor has been dropped.
fn reads_hold_up_nothing_else(dropped: u64) {
    let reads = Arc::new(Reads::default());
    let read = reads.announce(TensorId::new(1));
    let session = {
        let reads = reads.clone();
        thread::spawn(move || reads.let_pass(&drop_of(dropped)))
    };
    session.join().expect("the thread ends");
    drop(read);
}

/// Two readers of one tensor, and a session that drops it.
fn every_reader_is_waited_for() {
    let (reads, done) = (Arc::new(Reads::default()), Arc::new(Mutex::new(0)));
    let announced = [reads.announce(TensorId::new(1)), reads.announce(TensorId::new(1))];
    let session = {
        let (reads, done) = (reads.clone(), done.clone());
        thread::spawn(move || {
            reads.let_pass(&drop_of(1));
            assert_eq!(*done.lock(), 2);
        })
    };
    for read in announced {
        *done.lock() += 1;
        drop(read);
    }
    session.join().expect("the thread ends");
}

#[test]
fn what_ends_a_tensor_waits_for_its_readers_and_nothing_else_does() {
    always_holds("a reader", || reads_before_drops(true));
    assert!(is_found(|| reads_before_drops(false)), "a tensor that is dropped at once");
    always_holds("a reader of another tensor", || reads_hold_up_nothing_else(2));
    assert!(is_found(|| reads_hold_up_nothing_else(1)), "a reader that waits for the session that waits for it");
    always_holds("two readers", every_reader_is_waited_for);
}

/// The same through the queue: the reader gets the taker before the drop is submitted.
fn reads_through_the_queue(waits: bool) {
    let (reads, queue) = (Arc::new(Reads::default()), Log::queue(1000));
    queue.submit(|()| "make");
    let (announced, session) = channel();
    let reader = {
        let (reads, queue) = (reads.clone(), queue.clone());
        thread::spawn(move || {
            let _read = reads.announce(TensorId::new(1));
            announced.send(()).expect("the session continues");
            let log = queue.taker();
            assert!(log.taken.contains(&"make") && !log.taken.contains(&"drop"), "{:?}", log.taken);
        })
    };
    queue.submit(|()| "compute");
    session.recv().expect("it is announced");
    if waits {
        reads.let_pass(&drop_of(1));
    }
    queue.submit(|()| "drop");
    reader.join().expect("the thread ends");
    assert_eq!(queue.taker().taken, ["make", "compute", "drop"]);
}

#[test]
fn a_reader_finds_its_tensor_whatever_waits_in_the_queue() {
    holds("a reader at the queue", || reads_through_the_queue(true));
    assert!(is_found(|| reads_through_the_queue(false)), "a drop that overtakes a reader");
}
