//! The cases: what runs in each round, and what is judged.

use crate::plan::{Action, Era, Figure, Tool};
use crate::rounds::Options;
use crate::stand::{self, Setup, Target};

/// What is measured together, in interleaved rounds.
pub(crate) struct Case {
    pub(crate) name: &'static str,
    pub(crate) title: &'static str,
    /// What CPU is counted for: a call, an event, a life.
    pub(crate) unit: &'static str,
    pub(crate) setup: Setup,
    pub(crate) runs: Vec<Run>,
    pub(crate) judged: Vec<Judged>,
}

/// One proxy under one load.
#[derive(Clone, Copy)]
pub(crate) struct Run {
    pub(crate) label: &'static str,
    pub(crate) target: Target,
    pub(crate) action: Action,
}

/// A figure with its target.
pub(crate) struct Judged {
    pub(crate) what: &'static str,
    pub(crate) figure: (&'static str, Figure),
    pub(crate) over: Over,
    pub(crate) at_most: f64,
}

/// What a figure is divided by.
#[derive(Clone, Copy)]
pub(crate) enum Over {
    /// A figure of the same round.
    Run(&'static str, Figure),
    /// A unit.
    Unit(f64),
}

const DIRECT: &str = "direct";
/// The label of the run that ratios are to.
pub(crate) const FLOOR: &str = "floor";
const NGINX: &str = "nginx";
const TASKGATE: &str = "taskgate";
const TASKGATE_JWT: &str = "taskgate, JWT";
const TASKGATE_RULED: &str = "taskgate, rules";
const TASKGATE_ALONE: &str = "taskgate, alone";
const TASKGATE_SMALL: &str = "taskgate, small calls";
const TASKGATE_DISK: &str = "taskgate, disk";
const TASKGATE_FULL: &str = "taskgate, full disk";
const TASKGATE_REDIS: &str = "taskgate, redis";

/// Milliseconds, in leases.
const LEASES: Over = Over::Unit(stand::LEASE_SECONDS * 1e3);
const SECONDS: Over = Over::Unit(1e3);
const KB: Over = Over::Unit(1e3);
const MB: Over = Over::Unit(1e6);
const MIB: Over = Over::Unit(1048576.0);

pub(crate) fn names() -> impl Iterator<Item = &'static str> {
    all(&Options::full()).into_iter().map(|case| case.name)
}

pub(crate) fn all(options: &Options) -> Vec<Case> {
    let mut cases: Vec<_> = PASSES.iter().chain(&MODERN_PASSES).map(pass).collect();
    cases.extend([modern_on_legacy(), jwt(), rules(), noisy()]);
    cases.extend([life(), held(options), held_calls(options), finished(options), idle()]);
    cases.extend([stores_create(), stores_poll(options), takeover(), million(options)]);
    cases
}

/// A case of plain calls: every target under the same load.
struct Pass {
    era: Era,
    name: &'static str,
    title: &'static str,
    action: Action,
    judged: Figure,
    at_most: f64,
}

const fn closed(tool: Tool, connections: usize) -> Action {
    Action::Closed { tool, connections }
}

const PASSES: [Pass; 7] = [
    Pass {
        era: Era::Legacy,
        name: "small-1",
        title: "small tools/call, 1 connection",
        action: closed(Tool::Small, 1),
        judged: Figure::Cpu,
        at_most: 1.3,
    },
    Pass {
        era: Era::Legacy,
        name: "small-16",
        title: "small tools/call, 16 connections",
        action: closed(Tool::Small, 16),
        judged: Figure::Cpu,
        at_most: 1.25,
    },
    Pass {
        era: Era::Legacy,
        name: "small-64",
        title: "small tools/call, 64 connections",
        action: closed(Tool::Small, 64),
        judged: Figure::Cpu,
        at_most: 1.3,
    },
    Pass {
        era: Era::Legacy,
        name: "big",
        title: "results of 64 KiB, 16 connections",
        action: closed(Tool::Big, 16),
        judged: Figure::Cpu,
        at_most: 1.5,
    },
    Pass {
        era: Era::Legacy,
        name: "burst",
        title: "bursts of 100 events, 16 connections",
        action: closed(Tool::Burst, 16),
        judged: Figure::Cpu,
        at_most: 0.35,
    },
    Pass {
        era: Era::Legacy,
        name: "paced",
        title: "50 events 2 ms apart, 16 connections",
        action: closed(Tool::Paced, 16),
        judged: Figure::Cpu,
        at_most: 1.2,
    },
    Pass {
        era: Era::Legacy,
        name: "open",
        title: "1,000 small tools/call a second",
        action: Action::Open { tool: Tool::Small, connections: 16, per_second: 1_000 },
        judged: Figure::P50,
        at_most: 1.4,
    },
];

/// The same in the modern era, as far as the work differs.
const MODERN_PASSES: [Pass; 5] = [
    Pass {
        era: Era::Modern,
        name: "modern-small-16",
        title: "small tools/call without sessions, 16 connections",
        action: closed(Tool::Small, 16),
        judged: Figure::Cpu,
        at_most: 1.25,
    },
    Pass {
        era: Era::Modern,
        name: "modern-small-64",
        title: "small tools/call without sessions, 64 connections",
        action: closed(Tool::Small, 64),
        judged: Figure::Cpu,
        at_most: 1.3,
    },
    Pass {
        era: Era::Modern,
        name: "modern-big",
        title: "results of 64 KiB without sessions, 16 connections",
        action: closed(Tool::Big, 16),
        judged: Figure::Cpu,
        at_most: 1.5,
    },
    Pass {
        era: Era::Modern,
        name: "modern-burst",
        title: "bursts of 100 events without sessions, 16 connections",
        action: closed(Tool::Burst, 16),
        judged: Figure::Cpu,
        at_most: 0.35,
    },
    Pass {
        era: Era::Modern,
        name: "modern-paced",
        title: "50 events 2 ms apart without sessions, 16 connections",
        action: closed(Tool::Paced, 16),
        judged: Figure::Cpu,
        at_most: 1.2,
    },
];

fn pass(pass: &Pass) -> Case {
    let Pass { era, name, title, action, judged: figure, at_most } = *pass;
    let streaming = matches!(action, Action::Closed { tool: Tool::Burst | Tool::Paced, .. });
    let what = match figure {
        Figure::P50 => "p50, of the floor",
        _ if streaming => "CPU per event, of the floor",
        _ => "CPU per call, of the floor",
    };
    let mut runs = vec![
        Run { label: DIRECT, target: Target::Direct, action },
        Run { label: FLOOR, target: Target::Floor, action },
        Run { label: NGINX, target: Target::Nginx, action },
        Run { label: TASKGATE, target: Target::Taskgate, action },
    ];
    // It reads nothing, so that its figures would be those of the other era once more.
    runs.retain(|run| era == Era::Legacy || run.target != Target::Nginx);
    Case {
        name,
        title,
        unit: if streaming { "event" } else { "call" },
        setup: Setup { streaming, clients: era, upstream: era, ..Setup::default() },
        runs,
        judged: vec![Judged { what, figure: (TASKGATE, figure), over: Over::Run(FLOOR, figure), at_most }],
    }
}

/// Sessions are opened beforehand and kept: what a call costs upstream does not depend on its client's era.
fn modern_on_legacy() -> Case {
    let action = closed(Tool::Small, 16);
    Case {
        name: "modern-on-legacy",
        title: "small tools/call without sessions, on an upstream with sessions, 16 connections",
        unit: "call",
        setup: Setup { keyed: true, clients: Era::Modern, ..Setup::default() },
        runs: vec![
            Run { label: FLOOR, target: Target::Floor, action },
            Run { label: TASKGATE, target: Target::Taskgate, action },
        ],
        judged: vec![Judged {
            what: "requests to the upstream per call",
            figure: (TASKGATE, Figure::Requests),
            over: Over::Unit(1.0),
            at_most: 1.0,
        }],
    }
}

/// A token is checked once for each process: what is left is to find it again.
fn jwt() -> Case {
    let action = closed(Tool::Small, 16);
    Case {
        name: "jwt",
        title: "small tools/call without sessions, callers with signed tokens, 16 connections",
        unit: "call",
        setup: Setup { clients: Era::Modern, upstream: Era::Modern, ..Setup::default() },
        runs: vec![
            Run { label: FLOOR, target: Target::Floor, action },
            Run { label: TASKGATE, target: Target::Taskgate, action },
            Run { label: TASKGATE_JWT, target: Target::TaskgateJwt, action },
        ],
        judged: vec![Judged {
            what: "CPU per call with JWT, of that without credentials",
            figure: (TASKGATE_JWT, Figure::Cpu),
            over: Over::Run(TASKGATE, Figure::Cpu),
            at_most: 1.15,
        }],
    }
}

/// Both have callers with keys: what is compared is the rules alone.
fn rules() -> Case {
    let action = closed(Tool::Small, 16);
    Case {
        name: "rules",
        title: "small tools/call under three rules, one of which reads the arguments, 16 connections",
        unit: "call",
        setup: Setup { keyed: true, ..Setup::default() },
        runs: vec![
            Run { label: FLOOR, target: Target::Floor, action },
            Run { label: TASKGATE, target: Target::Taskgate, action },
            Run { label: TASKGATE_RULED, target: Target::Ruled, action },
        ],
        judged: vec![Judged {
            what: "CPU per call, of that without rules",
            figure: (TASKGATE_RULED, Figure::Cpu),
            over: Over::Run(TASKGATE, Figure::Cpu),
            at_most: 1.1,
        }],
    }
}

/// Both runs are taskgate's: what is judged is what one tenant does to another.
fn noisy() -> Case {
    let quiet = |noise| Action::Quiet { tool: Tool::Small, connections: 4, per_second: 200, noise };
    Case {
        name: "noisy",
        title: "200 small tools/call a second of one tenant, alone and beside one at ten times its rates",
        unit: "call",
        setup: Setup { keyed: true, shared: true, ..Setup::default() },
        runs: vec![
            Run { label: TASKGATE_ALONE, target: Target::Taskgate, action: quiet(false) },
            Run { label: TASKGATE, target: Target::Taskgate, action: quiet(true) },
        ],
        judged: vec![Judged {
            what: "p99 beside a noisy tenant, of that without",
            figure: (TASKGATE, Figure::P99),
            over: Over::Run(TASKGATE_ALONE, Figure::P99),
            at_most: 2.0,
        }],
    }
}

/// The same load on each kind of store.
fn on_each_store(action: Action) -> Vec<Run> {
    vec![
        Run { label: TASKGATE, target: Target::Taskgate, action },
        Run { label: TASKGATE_DISK, target: Target::TaskgateDisk, action },
        Run { label: TASKGATE_REDIS, target: Target::TaskgateRedis, action },
    ]
}

/// What a handle costs where it is kept in memory, on disk and in Redis; nothing is judged, since disks differ.
fn stores_create() -> Case {
    Case {
        name: "stores-create",
        title: "tasks made as fast as their handles come, 64 connections",
        unit: "create",
        setup: Setup { raised: true, ..Setup::default() },
        runs: on_each_store(Action::Creates { connections: 64 }),
        judged: Vec::new(),
    }
}

fn stores_poll(options: &Options) -> Case {
    Case {
        name: "stores-poll",
        title: "tasks/get of tasks that have ended, 16 connections",
        unit: "tasks/get",
        setup: Setup { raised: true, ..Setup::default() },
        runs: on_each_store(Action::Polls { connections: 16, count: options.polled }),
        judged: vec![Judged {
            what: "CPU per tasks/get on disk, of that in memory",
            figure: (TASKGATE_DISK, Figure::Cpu),
            over: Over::Run(TASKGATE, Figure::Cpu),
            at_most: 2.0,
        }],
    }
}

fn takeover() -> Case {
    Case {
        name: "takeover",
        title: "a replica with 20 held calls is killed",
        unit: "task",
        setup: Setup { raised: true, keyed: true, replicas: 2, ..Setup::default() },
        runs: vec![Run {
            label: TASKGATE_REDIS,
            target: Target::TaskgateRedis,
            action: Action::Takeover { count: 20 },
        }],
        judged: vec![Judged {
            what: "leases until the last task has ended",
            figure: (TASKGATE_REDIS, Figure::Takeover),
            over: LEASES,
            at_most: 2.0,
        }],
    }
}

/// An operation that looked at all tasks would cost a thousand times as much here.
fn million(options: &Options) -> Case {
    let (lives, full) = (Action::Lives { connections: 16 }, |figure| (TASKGATE_FULL, figure));
    Case {
        name: "million",
        title: "whole lives as above, on a disk with nothing and with 1,000,000 tasks that have ended",
        unit: "life",
        setup: Setup { raised: true, kept: options.kept, ..Setup::default() },
        runs: vec![
            Run { label: TASKGATE_DISK, target: Target::TaskgateDisk, action: lives },
            Run { label: TASKGATE_FULL, target: Target::TaskgateFull, action: lives },
        ],
        judged: vec![
            Judged { what: "seconds until it serves", figure: full(Figure::Start), over: SECONDS, at_most: 10.0 },
            Judged { what: "MiB after the load", figure: full(Figure::Bytes), over: MIB, at_most: 300.0 },
            Judged {
                what: "CPU per life, of that on an empty disk",
                figure: full(Figure::Cpu),
                over: Over::Run(TASKGATE_DISK, Figure::Cpu),
                at_most: 2.0,
            },
        ],
    }
}

fn life() -> Case {
    let calls = Action::Closed { tool: Tool::Small, connections: 16 };
    let lives = Action::Lives { connections: 16 };
    let handle = (TASKGATE, Figure::HandleP99);
    Case {
        name: "life",
        title: "a task's whole life (create, get until done, result), 16 connections",
        unit: "call or life",
        setup: Setup { raised: true, ..Setup::default() },
        runs: vec![
            Run { label: FLOOR, target: Target::Floor, action: calls },
            Run { label: TASKGATE_SMALL, target: Target::Taskgate, action: calls },
            Run { label: TASKGATE, target: Target::Taskgate, action: lives },
        ],
        judged: vec![
            Judged {
                what: "CPU per life, in small calls of the floor",
                figure: (TASKGATE, Figure::Cpu),
                over: Over::Run(FLOOR, Figure::Cpu),
                at_most: 5.0,
            },
            Judged {
                what: "handle's p99, of a small call's through taskgate",
                figure: handle,
                over: Over::Run(TASKGATE_SMALL, Figure::P99),
                at_most: 2.0,
            },
            Judged {
                what: "handle's p99, of a small call's through the floor",
                figure: handle,
                over: Over::Run(FLOOR, Figure::P99),
                at_most: 2.0,
            },
        ],
    }
}

fn held(options: &Options) -> Case {
    let (few, many) = options.held_tasks;
    Case {
        name: "held",
        title: "tasks whose calls are held",
        unit: "tasks/get",
        setup: Setup { raised: true, ..Setup::default() },
        runs: vec![Run {
            label: TASKGATE,
            target: Target::Taskgate,
            action: Action::HeldTasks { connections: 16, few, many },
        }],
        judged: vec![
            Judged {
                what: "CPU of tasks/get with many held tasks, of that with few",
                figure: (TASKGATE, Figure::CpuMany),
                over: Over::Run(TASKGATE, Figure::CpuFew),
                at_most: 1.15,
            },
            memory("kB per held call", KB, 32.0),
        ],
    }
}

fn held_calls(options: &Options) -> Case {
    let action = Action::HeldCalls { count: options.held_calls };
    Case {
        name: "held-plain",
        title: "plain calls that wait for their answers",
        unit: "call",
        setup: Setup { raised: true, ..Setup::default() },
        runs: proxies(action),
        judged: vec![memory("kB per held plain request", KB, 64.0)],
    }
}

fn finished(options: &Options) -> Case {
    let action = Action::Finished { connections: 16, count: options.finished };
    Case {
        name: "finished",
        title: "tasks that have ended and are kept",
        unit: "task",
        setup: Setup { raised: true, ..Setup::default() },
        runs: vec![Run { label: TASKGATE, target: Target::Taskgate, action }],
        judged: vec![memory("kB per finished task, beside its result", KB, 1.0)],
    }
}

fn idle() -> Case {
    Case {
        name: "idle",
        title: "one session and nothing to do",
        unit: "process",
        setup: Setup::default(),
        runs: proxies(Action::Idle),
        judged: vec![memory("MB when idle", MB, 25.0)],
    }
}

fn proxies(action: Action) -> Vec<Run> {
    vec![
        Run { label: FLOOR, target: Target::Floor, action },
        Run { label: NGINX, target: Target::Nginx, action },
        Run { label: TASKGATE, target: Target::Taskgate, action },
    ]
}

fn memory(what: &'static str, over: Over, at_most: f64) -> Judged {
    Judged { what, figure: (TASKGATE, Figure::Bytes), over, at_most }
}
