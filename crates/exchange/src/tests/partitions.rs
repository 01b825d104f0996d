//! Messages over several files: what belongs together stays together, whatever their number becomes.

use super::*;

impl Bed {
    async fn restart_with(&mut self, partitions: u8) {
        restart_with(&mut self.exchanges, self.folder.path(), partitions).await;
    }

    fn partition_of(&self, id: MessageId) -> u8 {
        self.exchanges.core.parts.spool.partition_of(id).0
    }

    fn keep_in_order(&self) -> String {
        definition(&self.a, &self.b, "ordered: { by: [type] }\n    concurrency: 8")
    }
}

#[tokio::test(flavor = "multi_thread")]
async fn replies_are_beside_requests_and_messages_are_spread() {
    let bed = Bed::start().await;
    let mut used = std::collections::BTreeSet::new();
    for _ in 0..2 * PARTITIONS {
        let sent = bed.post("orders", ORDER, None).await.expect("taken");
        let reply = bed.ended(sent.id).await.reply.expect("B replied");
        assert_eq!(bed.partition_of(reply), bed.partition_of(sent.id));
        bed.ended(reply).await;
        used.insert(bed.partition_of(sent.id));
    }
    assert_eq!(used.len(), usize::from(PARTITIONS));
}

#[tokio::test(flavor = "multi_thread")]
async fn callers_get_the_stored_reply_however_many_partitions_there_are() {
    let mut bed = Bed::start().await;
    let mut answers = Vec::new();
    for (partitions, order) in [(1, 1), (4, 2), (2, 3), (5, 4)] {
        if partitions == 2 {
            let _elsewhere = close(&mut bed.exchanges).await;
            let options = SpoolOptions { partitions, ..SpoolOptions::default() };
            let refused =
                SqliteSpool::open(bed.folder.path(), &options).err().expect("those that are to go have messages");
            assert!(refused.to_string().contains("cannot have 2 partitions yet"), "{refused}");
            bed.exchanges = open_with(bed.folder.path(), Arc::default(), 4).await;
        } else {
            bed.restart_with(partitions).await;
        }
        // One for each partition.
        for _ in 0..partitions {
            let note = bed.post("orders", r#"{"type": "note", "order": 0}"#, None).await.expect("taken");
            bed.ended(note.id).await;
        }
        let body = format!(r#"{{"type": "order", "order": {order}}}"#);
        let key = format!("k{order}");
        let answered = bed.post("questions", &body, Some(&key)).await.expect("taken");
        answers.push((body, key, answered));
        for (body, key, first) in &answers {
            let again = bed.post("questions", body, Some(key)).await.expect("taken");
            assert_eq!(
                (again.id, &again.reply_status),
                (first.id, &first.reply_status),
                "{key} with {partitions} partitions"
            );
        }
    }
    assert_eq!(bed.b.all().len(), 4, "B is asked once for each");
}

#[tokio::test(flavor = "multi_thread")]
async fn what_leaves_in_order_does_so_over_partitions_that_become_more() {
    let mut bed = Bed::start().await;
    bed.restart_with(2).await;
    bed.define(&bed.keep_in_order()).await;
    let (exchange, port) = (name("orders"), name("b"));
    bed.exchanges.operations.set_port(&exchange, &port, Some(PortState::Hold)).await.expect("held");
    let mut ids = Vec::new();
    for order in 0..40 {
        if order == 20 {
            bed.restart_with(5).await;
        }
        let body = format!(r#"{{"type": "order", "order": {order}}}"#);
        ids.push(bed.post("orders", &body, None).await.expect("taken").id);
    }
    let partitions = bed.exchanges.partitions();
    assert_eq!((partitions.len(), partitions.iter().map(|partition| partition.open).sum::<u64>()), (5, 40));
    assert!(partitions.iter().all(|partition| partition.bytes > 0 && partition.open > 0), "{partitions:?}");
    // The receiver fails now and then; later messages wait.
    bed.b.failures.lock().extend([503, 503]);
    bed.exchanges.operations.set_port(&exchange, &port, None).await.expect("as defined");
    for id in &ids {
        bed.ended(*id).await;
    }
    let seen: Vec<i64> = bed.b.all().iter().map(order_of).collect();
    let mut once = seen.clone();
    once.dedup();
    assert_eq!(once, (0..40).collect::<Vec<i64>>(), "{seen:?}");
}

fn order_of(asked: &Asked) -> i64 {
    let body: serde_json::Value = serde_json::from_str(&asked.body).expect("JSON");
    body["order"].as_i64().expect("a number")
}
