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
    assert_eq!(far.answers(11, all_of_them()).await.connections.len(), 3);
    assert_eq!(far.samples(12, Some(10)).await, [none, all]);
}

fn all_of_them() -> Question {
    Question::List(Wanted::default())
}

/// So many connections that say nothing are a part.
const PART: usize = PART_ENTRIES / OF_ITSELF;

#[tokio::test]
async fn many_connections_are_told_in_parts() {
    let mut far = Far::with(PART + 1);
    let messages = SessionTotals::default();
    far.node.ended.keep_messages(VhostId::new(1), &messages, &[]);
    let part = far.answers(1, Question::Sample { since: None }).await;
    assert!(part.goes_on && part.by_vhost.is_empty());
    assert_eq!((&*part.node, part.connections.len()), ("rabbit@far", PART));
    let mut told = SampleTold::default();
    told.add(part);
    assert_eq!((told.news.len(), told.ended.by_vhost.len()), (PART, 0));
    // A list, and a question for one, are beside it.
    assert!(far.answers(2, all_of_them()).await.goes_on);
    let last = Arc::clone(&far.clients.connections[PART]);
    let (name, pid) = (AnyConnection::Here(Arc::clone(&last)).name(), last.id().pid());
    for name in [name, pid] {
        let part = far.answers(3, Question::One { name }).await;
        assert!(!part.goes_on);
        let [one] = &part.connections[..] else { panic!("{:?}", part.connections) };
        assert_eq!(one.id, last.id());
        assert!(one.facts.is_some() && one.sampled.is_some());
    }
    for name in ["nobody".to_owned(), last.id().channel_pid(1)] {
        let part = far.answers(4, Question::One { name }).await;
        assert!(part.connections.is_empty() && !part.goes_on);
    }
    let part = far.answers(5, Question::More).await;
    assert_eq!((part.connections.len(), part.goes_on), (1, false));
    assert!(part.connections[0].facts.is_some());
    let part = far.answers(6, Question::MoreOfSample).await;
    assert_eq!((part.connections.len(), part.by_vhost.len(), part.goes_on), (1, 1, false));
    told.add(part);
    assert_eq!((told.news.len(), told.ended.by_vhost.len()), (PART + 1, 1));
    for more in [Question::More, Question::MoreOfSample] {
        let part = far.answers(7, more).await;
        assert!(part.connections.is_empty() && part.by_vhost.is_empty() && !part.goes_on);
    }
    // What was not asked for of one answer is not among the next.
    assert!(far.answers(8, all_of_them()).await.goes_on);
    let of_user = Wanted { user: Some("u".to_owned()), ..Wanted::default() };
    let part = far.answers(9, Question::List(of_user)).await;
    assert!(part.connections.is_empty() && !part.goes_on);
    let of_nobody = Wanted { user: Some(String::new()), vhost: Some(String::new()) };
    assert_eq!(far.answers(10, Question::List(of_nobody)).await.connections.len(), PART);
}

/// Who ends while a sample is shown is told of twice, and counts once.
#[tokio::test]
async fn who_ends_while_a_sample_is_shown_counts_once() {
    let mut far = Far::with(PART + 1);
    let mut told = SampleTold::default();
    told.add(far.answers(1, Question::Sample { since: None }).await);
    for at in [3, PART] {
        let it = &far.clients.connections[at];
        far.node.ended.keep(it.id(), &mut it.actor.state());
    }
    let part = far.answers(2, Question::MoreOfSample).await;
    assert_eq!(part.late, [far.clients.connections[3].id()]);
    assert_eq!((part.connections.len(), part.by_vhost.len(), part.goes_on), (0, 1, false));
    told.add(part);
    let told: Vec<_> = told.news.iter().map(|(it, _)| it.id()).collect();
    let all = far.clients.connections.iter().map(|it| it.id()).enumerate();
    let want: Vec<_> = all.filter(|(at, _)| ![3, PART].contains(at)).map(|(_, id)| id).collect();
    assert_eq!(told, want);
}

/// Totals of very many vhosts, too.
#[tokio::test]
async fn totals_are_told_in_parts() {
    let mut far = Far::with(1);
    for number in 0..300 {
        far.node.ended.keep_messages(VhostId::new(number), &SessionTotals::default(), &[]);
    }
    let mut told = SampleTold::default();
    let mut question = Question::Sample { since: None };
    for left in [300 - PART, 300 - 2 * PART, 0] {
        let part = far.answers(1, question).await;
        assert!(part.by_vhost.len() <= PART);
        assert_eq!(part.goes_on, left > 0);
        told.add(part);
        assert_eq!(told.ended.by_vhost.len(), 300 - left);
        question = Question::MoreOfSample;
    }
    let rests = far.answers(2, Question::Sample { since: Some(1) }).await.rests;
    assert_eq!(rests, [far.clients.connections[0].id()]);
}

/// What clients tell of themselves counts, whatever they tell.
#[tokio::test]
async fn a_part_with_much_of_clients_has_few_of_them() {
    let far = Far::with(1);
    let mut facts = far.clients.connections[0].facts();
    assert_eq!(weigh(&mut facts), OF_ITSELF);
    let long = vec![b'x'; 100 * PROPERTIES as usize];
    facts.client_properties.push("product", leveret_amqp::table::Value::LongStr(long));
    assert!(weigh(&mut facts) >= OF_ITSELF + 100);
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
