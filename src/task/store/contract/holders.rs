//! What every store must do when holders go and others come.

use super::*;

pub(crate) async fn hands_luggage_to_the_next_holder(store: Arc<dyn Store>) {
    let (first, second) = (Holder::from_text("first"), Holder::from_text("second"));
    assert!(store.outlives_holders() && store.holders().await.unwrap().is_empty());
    let made = store.create(task(&alice()), Some("draft".into()), &AMPLE).await.unwrap();
    assert_eq!((made.epoch, &made.holder), (1, &first));
    assert_eq!(store.holders().await.unwrap(), std::slice::from_ref(&first));
    store.note_trail(&alice(), made.id, 1, Step::First, "here".into()).await.unwrap();
    store.note_trail(&alice(), made.id, 1, Step::Further, "there".into()).await.unwrap();
    assert_eq!(store.read(&alice(), made.id).await.unwrap().unwrap().version, made.version);
    let mut watch = store.watch(&alice(), made.id).await.unwrap().unwrap();
    assert!(store.take_over(&second, &first, 10).await.unwrap().is_empty());
    let [orphan] = &store.take_over(&first, &second, 10).await.unwrap()[..] else { panic!("one task") };
    assert_eq!((orphan.draft.as_deref(), orphan.trail.as_deref()), (Some("draft"), Some("there")));
    let Task { epoch, version, holder, .. } = &*orphan.task;
    assert_eq!((*epoch, *version, holder), (2, made.version + 1, &second));
    assert!(watch.changed().await);
    assert_eq!(store.holders().await.unwrap(), std::slice::from_ref(&second));
    assert!(store.take_over(&first, &second, 10).await.unwrap().is_empty());
    // Whoever was fast asleep meanwhile has no say any more.
    let late = store.note_trail(&alice(), made.id, 1, Step::First, "nowhere".into()).await;
    assert!(matches!(late, Err(StoreError::Conflict)));
    assert!(matches!(store.replace(ended(&made), None).await, Err(StoreError::Conflict)));
    store.replace(ended(&orphan.task), None).await.unwrap();
    assert!(store.holders().await.unwrap().is_empty());
    assert!(store.take_over(&second, &first, 10).await.unwrap().is_empty());
    let late = store.note_trail(&alice(), made.id, 2, Step::Further, "nowhere".into()).await;
    assert!(matches!(late, Err(StoreError::Conflict)));
    let missing = store.note_trail(&alice(), TaskId::random(), 1, Step::First, "nowhere".into()).await;
    assert!(matches!(missing, Err(StoreError::NotFound)));
}

pub(crate) async fn takes_over_queued_tasks_without_a_place(store: Arc<dyn Store>) {
    let (first, second) = (Holder::from_text("first"), Holder::from_text("second"));
    let limits = Limits { running_tasks: 1, ..AMPLE };
    let running = store.create(task(&alice()), None, &limits).await.unwrap();
    let queued = store.create(task(&alice()), None, &limits).await.unwrap();
    let before = usage(&store, "acme").await;
    assert_eq!(store.take_over(&first, &second, 1).await.unwrap().len(), 1);
    assert_eq!(store.take_over(&first, &second, 5).await.unwrap().len(), 1);
    assert_eq!(usage(&store, "acme").await, before);
    assert_eq!(state(&store, &queued).await, State::Queued);
    let running = store.read(&alice(), running.id).await.unwrap().unwrap();
    store.replace(ended(&running), None).await.unwrap();
    let started = store.read(&alice(), queued.id).await.unwrap().unwrap();
    assert!(matches!(started.state, State::Held(_)));
    assert_eq!((started.epoch, &started.holder), (2, &second));
    store.purge(started.expires_at(), 10).await.unwrap();
    assert!(store.holders().await.unwrap().is_empty());
}

pub(crate) async fn a_task_goes_to_one_new_holder(store: Arc<dyn Store>) {
    for _ in 0..200 {
        store.create(task(&alice()), None, &AMPLE).await.unwrap();
    }
    let jobs = Jobs::default();
    let takers = ["a", "b", "c"].map(|name| {
        let store = store.clone();
        jobs.spawn("taker", async move {
            let (from, by) = (Holder::from_text("first"), Holder::from_text(name));
            let mut taken = Vec::new();
            loop {
                let orphans = store.take_over(&from, &by, 7).await.unwrap();
                if orphans.is_empty() && store.holders().await.unwrap().iter().all(|holder| *holder != from) {
                    return taken;
                }
                assert!(orphans.iter().all(|orphan| orphan.task.holder == by && orphan.task.epoch == 2));
                taken.extend(orphans.iter().map(|orphan| orphan.task.id));
            }
        })
    });
    let taken: Vec<TaskId> = join_all(takers).await.into_iter().flat_map(Result::unwrap).collect();
    assert_eq!((taken.len(), taken.iter().collect::<HashSet<_>>().len()), (200, 200));
}

pub(crate) async fn gives_a_holder_what_it_does_not_know_of(store: Arc<dyn Store>) {
    let (first, second) = (Holder::from_text("first"), Holder::from_text("second"));
    let limits = Limits { running_tasks: 3, ..AMPLE };
    let mut made = Vec::new();
    for owner in [&alice(), &owner("umbrella", "bob"), &alice(), &alice(), &alice()] {
        made.push(store.create(task(owner), Some("draft".into()), &limits).await.unwrap());
    }
    store.note_trail(&alice(), made[0].id, 1, Step::First, "here".into()).await.unwrap();
    store.replace(ended(&made[3]), None).await.unwrap();
    let queued = store.create(task(&alice()), None, &limits).await.unwrap();
    let before = usage(&store, "acme").await;
    // Given a holder that knows of two of its five unfinished tasks, then it gets the others, and each once.
    let knows = |id, epoch| [made[2].id, made[4].id].contains(&id) && epoch == 1;
    assert!(store.take_strays(&second, &|_, _| false, 10).await.unwrap().is_empty());
    assert!(store.take_strays(&first, &|_, epoch| epoch == 1, 10).await.unwrap().is_empty());
    let mut watch = store.watch(&alice(), made[0].id).await.unwrap().unwrap();
    let mut strays = Vec::new();
    for at_most in [1, 1, 10, 10] {
        let known = |id, epoch| knows(id, epoch) || epoch > 1;
        let taken = store.take_strays(&first, &known, at_most).await.unwrap();
        assert!(taken.len() <= at_most);
        strays.extend(taken);
    }
    let taken: HashSet<TaskId> = strays.iter().map(|stray| stray.task.id).collect();
    assert_eq!((strays.len(), taken), (3, HashSet::from([made[0].id, made[1].id, queued.id])));
    assert!(strays.iter().all(|stray| (&stray.task.holder, stray.task.epoch) == (&first, 2)));
    assert!(watch.changed().await);
    let known = strays.iter().find(|stray| stray.task.id == made[0].id).unwrap();
    assert_eq!((known.draft.as_deref(), known.trail.as_deref()), (Some("draft"), Some("here")));
    assert_eq!(usage(&store, "acme").await, before);
    // Whoever held it under the earlier epoch has no say any more; who holds it now has, and so have others after it.
    let late = store.note_trail(&alice(), made[0].id, 1, Step::First, "nowhere".into()).await;
    assert!(matches!(late, Err(StoreError::Conflict)));
    store.replace(ended(&known.task), None).await.unwrap();
    assert_eq!(store.take_over(&first, &second, 10).await.unwrap().len(), 4);
    assert!(store.take_strays(&first, &|_, _| false, 10).await.unwrap().is_empty());
    assert_eq!(store.holders().await.unwrap(), [second]);
}
