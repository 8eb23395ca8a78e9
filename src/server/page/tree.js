/** Branches: every message knows the one before it, and a chat shows one way through them. */

/** Adds ids and parents to a plain list of messages; returns the last one's id. */
export function asBranch(messages) {
  messages.forEach((message, index) => {
    message.id = index + 1;
    message.parent = index;
  });
  return messages.length;
}

export function nextId(nodes) {
  return nodes.reduce((most, { id }) => Math.max(most, id), 0) + 1;
}

/** The messages from the first one to this leaf. */
export function branchTo(nodes, leaf) {
  const byId = new Map(nodes.map((node) => [node.id, node]));
  const branch = [];
  for (let node = byId.get(leaf); node && branch.length < nodes.length; ) {
    branch.unshift(node);
    node = byId.get(node.parent);
  }
  return branch;
}

/** The versions of a message: all that follow the same one, oldest first. */
export function versionsOf(nodes, message) {
  return nodes.filter(({ parent, role }) => parent === message.parent && role === message.role);
}

/** The end of the latest branch below a message. */
export function leafBelow(nodes, id) {
  for (;;) {
    const next = nodes.findLast(({ parent }) => parent === id);
    if (!next) return id;
    id = next.id;
  }
}
