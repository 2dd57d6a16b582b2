use leveret_session::SessionTotals;

use super::*;
use crate::cluster::sessions::testing::Clients;
use crate::connection::Letter;
use crate::runner::run_alone;

/// A node with connections of clients that say nothing.
struct Far {
    node: Arc<Node>,
    looks: Looks,
    clients: Clients,
}

impl Far {
    /// To be called in a runtime.
    fn with(count: usize) -> Self {
        let node = Arc::new(Node::standing_by());
        let clients = Clients::of(&node, count);
        Self { node, looks: Looks::default(), clients }
    }

    async fn answers(&mut self, number: u64, question: Question) -> Part {
        let answer = self.looks.answer(&self.node, "rabbit@far", number, question).await;
        serde_json::from_slice(&answer).unwrap()
    }

    /// Whose news an answer to a sample has, and who rests.
    async fn samples(&mut self, number: u64, since: Option<u64>) -> [Vec<ConnectionId>; 2] {
        let mut part = self.answers(number, Question::Sample { since }).await;
        assert!(!part.goes_on);
        [part.take_connections().map(|it| it.id).collect(), part.rests]
    }
}

/// Only to who took in the last answer.
#[tokio::test]
async fn a_sample_leaves_out_who_had_no_turn_since() {
    let mut far = Far::with(3);
    let all: Vec<_> = far.clients.connections.iter().map(|it| it.id()).collect();
    let none = Vec::new();
    assert_eq!(far.samples(5, None).await, [all.clone(), none.clone()]);
    assert_eq!(far.samples(6, Some(5)).await, [none.clone(), all.clone()]);
    run_alone(&far.node, |runner| {
        runner.run_connection(&far.clients.connections[1], Letter::Timeout)
    });
    let rest = vec![all[0], all[2]];
    assert_eq!(far.samples(7, Some(6)).await, [vec![all[1]], rest]);
    assert_eq!(far.samples(8, Some(7)).await, [none.clone(), all.clone()]);
    // The answer to 8 did not come; another leader has taken in none.
    assert_eq!(far.samples(9, Some(7)).await, [all.clone(), none.clone()]);
    assert_eq!(far.samples(10, None).await, [all.clone(), none.clone()]);
    // A list has nothing to do with that.
    assert_eq!(far.answers(11, Question::List).await.connections.len(), 3);
    assert_eq!(far.samples(12, Some(10)).await, [none, all]);
}

#[tokio::test]
async fn many_connections_are_told_in_parts() {
    let mut far = Far::with(PART + 1);
    let messages = SessionTotals::default();
    far.node.ended.keep_messages(VhostId::new(1), &messages, &[]);
    let mut part = far.answers(1, Question::Sample { since: None }).await;
    assert!(part.goes_on && part.by_vhost.is_empty());
    assert_eq!((&*part.node, part.connections.len()), ("rabbit@far", PART));
    let mut told = SampleTold::default();
    told.add(std::mem::take(&mut part));
    assert_eq!((told.news.len(), told.ended.by_vhost.len()), (PART, 0));
    let part = far.answers(2, Question::More).await;
    assert_eq!((part.connections.len(), part.by_vhost.len(), part.goes_on), (1, 1, false));
    told.add(part);
    assert_eq!((told.news.len(), told.ended.by_vhost.len()), (PART + 1, 1));
    let part = far.answers(3, Question::More).await;
    assert!(part.connections.is_empty() && !part.goes_on);
    // What was not asked for of one answer is not among the next.
    assert!(far.answers(4, Question::List).await.goes_on);
    let name = AnyConnection::Here(Arc::clone(&far.clients.connections[PART])).name();
    let part = far.answers(5, Question::One { name }).await;
    assert!(!part.goes_on);
    let [one] = &part.connections[..] else { panic!("{:?}", part.connections) };
    assert_eq!(one.id, far.clients.connections[PART].id());
    assert!(one.facts.is_some() && one.sampled.is_some());
    let part = far.answers(6, Question::One { name: "nobody".to_owned() }).await;
    assert!(part.connections.is_empty() && !part.goes_on);
}

#[test]
fn whose_connections_events_name_is_known() {
    let node = NodeId::new(9).unwrap();
    let id = node.connection(7);
    assert_eq!(of_pid(&id.pid()), Some(id));
    assert_eq!(of_pid(&id.channel_pid(3)), Some(id));
    let alone = NodeId::ALONE.connection(7);
    assert_eq!(of_pid(&alone.channel_pid(3)), Some(alone));
    assert_eq!(of_pid("<queue.7>"), None);
    assert_eq!(of_pid("<connection.x>"), None);
}
