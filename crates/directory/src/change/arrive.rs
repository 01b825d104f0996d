//! How most subscribers are made: below an object, by whoever may. What is stored is worked out by whoever asks. The one writer of
//! the store only looks whether the name and the id are free.

use tocsin_model::{id::SubscriberNumber, subscriber::Subscriber};
use tocsin_store::{
    entries::{Arrival, Node, Placement},
    records::NewSubscriber,
};

use super::{
    Terms,
    add::Newcomer,
    classes_of,
    expire::{ENDS, is_dynamic},
    wanted_ids,
};
use crate::{
    access::Asker,
    directory::{Directory, Inner},
    entry::{Place, view},
    kept::{Prebuilt, Shown},
    person::subscriber_of,
    plan,
    refusal::Refusal,
};

impl Directory {
    /// Makes an entry, if no more is to be done than to write it down. Where there is any doubt nothing is done: whoever does it in
    /// the midst of the others says why it cannot be.
    pub(super) async fn arrive(&self, asker: &Asker, new: &Newcomer, terms: &Terms) -> Result<bool, Refusal> {
        let above = new.dn.0[1..].iter().map(|rdn| rdn.text.as_str()).collect::<Vec<_>>().join(",");
        let shown = match self.at_hand(&above) {
            Some(shown) => shown,
            None => match self.find(&above).await {
                Ok(shown) => shown,
                Err(_) => return Ok(false),
            },
        };
        match self.inner.arrival(asker, new, terms, &shown) {
            Some(arrival) => Ok(self.entries.arrive(arrival).await?),
            None => Ok(false),
        }
    }
}

impl Inner {
    fn arrival(&self, asker: &Asker, new: &Newcomer, terms: &Terms, above: &Shown) -> Option<Arrival> {
        let Newcomer { dn, attributes, credential, schema, now } = new;
        let (above, rdn, classes) = (&above.entry, &dn.0[0], classes_of(attributes));
        let is_plain = above.number.subscriber().is_none()
            && !self.is_people(above.number)
            && above.attribute(ENDS).is_none()
            && schema.is_subscriber(&classes)
            && !is_dynamic(&classes, schema)
            && terms.unique.is_empty()
            && !terms.after;
        // The rights of others than operators depend on more than the entry above.
        if !is_plain || !asker.manages {
            return None;
        }
        let placement = Placement {
            parent: above.number,
            rdn: rdn.text.as_str().into(),
            rdn_key: schema.normal_rdn(rdn).into(),
            classes: classes.join(" ").into(),
        };
        let id = wanted_ids(attributes, rdn).next()?;
        let new = subscriber_of(id, None, attributes, Some(&placement), &self.shape).ok()?;
        let NewSubscriber { id, profile, devices, preferences } = new;
        let subscriber = Subscriber {
            // Told by the commit.
            number: SubscriberNumber(0),
            id: id.clone(),
            profile,
            devices: devices.iter().flatten().cloned().collect(),
            preferences: preferences.clone().unwrap_or_default(),
            created_at: *now,
            updated_at: *now,
            revision: 1,
        };
        let node = Node::Subscriber(Box::new(subscriber), Some(placement));
        let place = Place { number: above.number, parent: above.parent, dn: above.dn.clone(), key: above.key.clone() };
        let entry = view(&node, Some(&place), schema, &self.shape);
        let keys = plan::keys(&entry.attributes, schema);
        let built = Prebuilt::of(Shown::stored(entry, &node), schema.clone());
        let Node::Subscriber(subscriber, Some(placement)) = node else { return None };
        Some(Arrival {
            new: NewSubscriber { id, profile: subscriber.profile, devices, preferences },
            placement,
            credential: credential.as_ref().map(|credential| credential.to_text()),
            keys,
            now: *now,
            built,
        })
    }
}
